"""The same benchmarks in two checkouts, in turn: what a change of the code costs, on one machine at one time.

    python -m benchmarks.side_by_side BEFORE AFTER [--rounds 3] [--only NAME]

BEFORE and AFTER are folders of two checkouts. Each round runs every program below in one, then in the other. What is
compared is the median over the rounds of every figure that a program prints (Markdown tables or JSON). Progress goes to
stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = {
    "producer_send": [],
    "producer_overlap": [],
    "latest_offset": ["--calls", "300", "--appends", "100"],
    "read_tasks": [],
    "log_fold": [],
    "consumer_plan": [],
    "producer_murmur2": [],
    "producer_memory": ["--gib", "0.5"],
    "ledger_entry_size": [],
    "micro_batch": ["--batches", "50", "--rounds", "1"],
    "spark_throughput": ["--rows", "2000000", "--rounds", "3"],
}
_NUMBER = re.compile(r"[\d,]*\d(?:\.\d+)?")
_UNITS = {"M": 1e6, "k": 1e3}


def figures(folder: Path, program: str, arguments: list[str]) -> dict[str, float]:
    """Run one program in one checkout and return its figures by name."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    at = done.stdout.find("{")
    results = dict(_of_json(json.loads(done.stdout[at:]))) if at >= 0 else dict(_of_tables(done.stdout))
    if not results:
        if done.returncode:
            raise SystemExit(f"{program} failed in {folder}:\n{done.stdout}\n{done.stderr}")
        print(f"{program} printed no figures in {folder}: it is left out", file=sys.stderr, flush=True)
    return results


def _of_json(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _of_json(part, f"{name}, {key}" if name else str(key))
    elif isinstance(value, int | float):
        yield name, float(value)


def _of_tables(text: str) -> Iterator[tuple[str, float]]:
    """Yield the column whose head says median, of every row; a line of one word above a table names it."""
    title, column = "", 1
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 2:
            title = line.strip() if re.fullmatch(r"\w+", line.strip()) else title
            continue
        if any("median" in cell for cell in cells):
            column = next(number for number, cell in enumerate(cells) if "median" in cell)
            continue
        match = _NUMBER.match(cells[column])
        if match:
            unit = cells[column][match.end() :].strip()[:1]
            yield " ".join([title, cells[0]]).strip(), float(match[0].replace(",", "")) * _UNITS.get(unit, 1.0)


def main() -> None:
    """Print one table for each program: medians of both checkouts and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=sorted(PROGRAMS))
    arguments = parser.parse_args()
    for program in arguments.only or PROGRAMS:
        values: dict[str, tuple[list[float], list[float]]] = {}
        for number in range(arguments.rounds):
            for side, folder in enumerate((arguments.before, arguments.after)):
                print(f"{program}: round {number + 1}, {folder}", file=sys.stderr, flush=True)
                for label, value in figures(folder.resolve(), program, PROGRAMS[program]).items():
                    values.setdefault(label, ([], []))[side].append(value)
        print(f"\n## {program} {' '.join(PROGRAMS[program])}\n\n| case | before | after | after / before |")
        print("| --- | --- | --- | --- |")
        for label, (old, new) in values.items():
            if old and new:
                before, after = statistics.median(old), statistics.median(new)
                ratio = f"{after / before:.2f}" if before else ""
                print(f"| {label} | {before:,.2f} | {after:,.2f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
