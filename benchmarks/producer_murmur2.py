"""Keys hashed per second by the vectorised murmur2; the aim is 30 million keys of 10 bytes.

python benchmarks/producer_murmur2.py
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spark_replog.write.partitioner import murmur2_array

KEY_COUNT = 2_000_000
RUNS = 7
AIM_KEYS_PER_S = 30e6


def measure(keys: pa.Array) -> float:
    """Return the median of millions of keys per second."""
    rates = []
    for _ in range(RUNS):
        start = time.perf_counter()
        murmur2_array(keys)
        rates.append(len(keys) / (time.perf_counter() - start))
    return statistics.median(rates) / 1e6


def main() -> None:
    """Print millions of keys per second for four shapes of key; fail where the aim is missed."""
    source = random.Random(0)
    shapes = {
        "10 bytes": [b"%010d" % number for number in range(KEY_COUNT)],
        "10 bytes, 1 in 10 null": [None if number % 10 == 0 else b"%010d" % number for number in range(KEY_COUNT)],
        "1 to 20 bytes": [source.randbytes(source.randrange(1, 21)) for _ in range(KEY_COUNT)],
        "36 bytes": [source.randbytes(36) for _ in range(KEY_COUNT)],
    }
    rates = {name: round(measure(pa.array(keys, pa.binary())), 1) for name, keys in shapes.items()}
    print(json.dumps({"million_keys_per_s": rates}))
    sys.exit(0 if rates["10 bytes"] * 1e6 >= AIM_KEYS_PER_S else 1)


if __name__ == "__main__":
    main()
