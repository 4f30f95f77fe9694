"""``python -m spark_replog`` is ``replog``."""

from __future__ import annotations

from spark_replog.cli.main import main

if __name__ == "__main__":
    main()
