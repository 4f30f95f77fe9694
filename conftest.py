"""What holds for every process of the test command, before anything else is imported."""

import os
import sys

# Images of containers set PYTHONDONTWRITEBYTECODE=1. Then each worker, and each process that a test starts, compiles
# every module again: a fifth of the fast set's processor time. Bytecode goes where Python puts it otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
