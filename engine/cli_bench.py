"""`bench`: how fast a step of a published model's shape is on this machine, without downloading it.

Knows arguments, and where the report goes: a table to stdout, JSON to a file. What is measured is
`engine.bench`'s business.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.bench.shapes import SHAPES, SMALL, shape_of
from engine.errors import RequestError

COMMAND = "python -m engine bench"


def run(argv: Sequence[str]) -> None:
    """Runs the command. Raises UnblurError for what cannot be measured, OSError where the report
    cannot be written."""
    options = _parser().parse_args(list(argv))
    if options.json is not None and not options.json.parent.is_dir():
        raise RequestError(
            "bench.no_folder",
            f"There is no folder {options.json.parent} to write the report to.",
            "Make it, or choose another file.",
        )
    from engine.bench.measure import BenchOptions, run_bench
    from engine.bench.report import table
    from engine.engine import leave_a_core_free
    from engine.loading import choose_device

    shape = shape_of(options.shape)
    context = shape.prompt if options.context is None else options.context
    wanted = BenchOptions(
        context=context,
        tpf=tuple(dict.fromkeys(options.tpf or [shape.tpf])),
        routing=options.routing,
        all_nvfp4=options.all_nvfp4,
        reference_tokens=0 if options.no_reference else options.reference_tokens,
    )
    if options.rounds is not None:
        wanted = replace(wanted, rounds=options.rounds)
    device = choose_device(options.device)
    if device.type == "cpu":
        leave_a_core_free()
    command = " ".join([COMMAND, *argv])
    report = run_bench(shape, device, wanted, command, _say)
    print(table(report))
    if options.json is not None:
        text = json.dumps(report.as_json(), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


def _say(doing: str) -> None:
    print(doing, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Time denoising steps of a model with random weights at a published shape:"
        " eager, one CUDA graph per step, a whole reply as one graph, and that one recorded.",
    )
    parser.add_argument(
        "--shape",
        choices=(*SHAPES, *SMALL),
        metavar="{" + ",".join(SHAPES) + "}",
        default="demo",
        help="whose sizes (demo if omitted: the only one measured without a GPU)",
    )
    parser.add_argument("--context", type=int, help="tokens of the prompt, whole blocks")
    parser.add_argument(
        "--tpf",
        type=float,
        nargs="+",
        help="tokens per forward to give tok/s for, between two whole numbers of forwards a block"
        " (8.5 if omitted; 2 where a block has 4 tokens)",
    )
    parser.add_argument(
        "--routing",
        choices=("uniform", "own"),
        default="uniform",
        help="experts chosen evenly, which reads most, or as the random model does",
    )
    parser.add_argument(
        "--all-nvfp4", action="store_true", help="every matrix in NVFP4, not only routed experts"
    )
    parser.add_argument("--rounds", type=_positive, help="times the arms take turns")
    parser.add_argument(
        "--reference-tokens",
        type=_positive,
        default=544,
        help="length of the sequence that the plain reference forwards again at every step",
    )
    parser.add_argument("--no-reference", action="store_true", help="leave the reference out")
    parser.add_argument("--device", help="cpu or cuda (chosen if omitted)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"not a number above 0: {text!r}")
    return value
