"""Checks and times every kernel on one GPU, in one call: a correctness table first, then
milliseconds and TB/s.

Knows how to run the sections (each a child process, so that a fault or a hang costs one section)
and how to print their results. What is measured is in kernels_*.py beside this.

Usage: PYTHONPATH=. python3 bench/kernels.py [--out DIR] [--sections rest,moe,step,next] [--limit
SECONDS]

`next` is what is written but not in use, and not among the usual sections.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SECTIONS = ("rest", "moe", "step")
NEXT = (  # a process each: see kernels_next.py
    "next: attention",
    "next: products bf16",
    "next: products nvfp4",
    "next: router",
    "next: ring 11",
    "next: ring 7",
    "next: ring 2 chunks",
)
Row = dict[str, object]


def rows_of(section: str, out: Path) -> Path:
    """Where a section leaves its rows."""
    return out / f"kernels_{section.replace(': ', '_').replace(' ', '_')}.jsonl"


def run_section(name: str, out: Path, limit: float) -> list[Row]:
    """Runs one section in a child; its rows are kept line by line, so a killed child loses only
    what was not done."""
    path = rows_of(name, out)
    path.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--child", name, "--out", str(out)]
    began = time.perf_counter()
    try:
        code = subprocess.run(command, timeout=limit, check=False).returncode
        note = "" if code == 0 else f"exit code {code}"
    except subprocess.TimeoutExpired:
        note = f"stopped after {limit:.0f} s"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    took = time.perf_counter() - began
    rows.append({"section": name, "kind": "section", "name": name, "seconds": took, "note": note})
    return rows


def table(rows: list[Row], every_check: bool) -> str:
    """The rows as text. Checks that hold are counted rather than listed unless `every_check`."""
    checks = [row for row in rows if row["kind"] == "check"]
    good = [row for row in checks if row["ok"]]
    lines = [f"{len(good)} of {len(checks)} checks hold"]
    for row in rows:
        kind, name = row["kind"], str(row["name"])
        if kind == "check":
            if row["ok"] and not every_check:
                continue
            mark = "ok " if row["ok"] else "BAD"
            lines.append(f"{mark} {name:<58} error {row['error']:.2e} (limit {row['limit']:.0e})")
        elif kind == "time":
            speed = f"{row['tbs']:.2f} TB/s" if row.get("tbs") else ""
            extra = str(row.get("note", ""))
            lines.append(f"    {name:<58} {row['ms']:8.4f} ms  {speed} {extra}")
        elif kind == "failed":
            lines.append(f"ERR {name:<58} {row['note']}")
        else:
            lines.append(f"--- {name}: {row.get('seconds', 0):.1f} s {row.get('note', '')}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a section may take")
    parser.add_argument("--child")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        from kernels_measure import Recorder, run_child

        run_child(options.child, Recorder(options.child, rows_of(options.child, options.out)))
        return 0
    rows: list[Row] = []
    asked = options.sections.split(",")
    for name in [part for group in asked for part in (NEXT if group == "next" else (group,))]:
        rows += run_section(name, options.out, options.limit)
    (options.out / "kernels.json").write_text(json.dumps(rows, indent=1))
    (options.out / "kernels.txt").write_text(table(rows, every_check=True))
    print(table(rows, every_check=False), flush=True)
    bad = [r for r in rows if r["kind"] == "failed" or (r["kind"] == "check" and not r["ok"])]
    bad += [r for r in rows if r["kind"] == "section" and r["note"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
