"""The terminal's side of data: what a file holds, and what a model would see of it.

Knows words and exit codes. What is looked for is `trainer.data.checks`' business.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from trainer.data.report import DataReport, SeenRow
from trainer.verify.verifier_spec import VerifierSpec

BAR = 40  # characters of the longest bar


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`data check`."""
    check = commands.add_parser("data", help="look at a file of examples before training")
    check.add_argument(
        "what", choices=("check",), help="count, measure and show rows as the model will see them"
    )
    check.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSONL, JSON, CSV, Parquet, text, or hf://owner/name/path of the hub",
    )
    check.add_argument("--model", type=Path, metavar="DIR", help="model folder that would train")
    check.add_argument(
        "--verifier", metavar="JSON", help='such as \'{"kind": "number"}\', tried on the first rows'
    )
    check.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help="which column is the prompt, answer, system, context, messages or skill",
    )
    check.add_argument("--validation", type=float, default=0.1, metavar="SHARE")
    check.add_argument("--seed", type=int, default=1)
    check.add_argument("--rows", type=int, default=5, help="rows to show (default 5)")
    check.add_argument("--json", action="store_true", help="the whole report as JSON")
    check.set_defaults(do=_check)


def _check(args: argparse.Namespace) -> int:
    from trainer.data.checks import CheckOptions, check_data

    if not 0.0 <= args.validation < 1.0:
        raise RequestError("data.option", "--validation must be 0 to below 1.", "Change it.")
    options = CheckOptions(validation=args.validation, seed=args.seed, shown=max(0, args.rows))
    files = tuple(args.files)
    if any(name.startswith("hf://") for name in files):
        from trainer.data.readers.hub import local_files  # a slow import, seldom needed

        files = local_files(files)
    report = check_data(files, _columns(args.column), args.model, _verifier(args.verifier), options)
    if args.json:
        print(json.dumps(dataclasses.asdict(report), ensure_ascii=False, indent=1))
    else:
        print("\n".join(words(report, sys.stdout.isatty())))
    return 0 if report.trainable else 1


def _columns(named: list[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in named:
        role, sign, column = text.partition("=")
        if not sign or not column:
            raise RequestError(
                "data.columns", f"--column {text} names no column.", "Write ROLE=NAME."
            )
        columns[role.strip()] = column
    return columns


def _verifier(text: str | None) -> VerifierSpec | None:
    from trainer.strict_json import read

    if text is None:
        return None
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise RequestError(
            "verifier.json", f"--verifier is not JSON: {error}.", 'Write {"kind": "number"}.'
        ) from error
    return read(VerifierSpec, value, "verifier")


def words(report: DataReport, colours: bool) -> Iterator[str]:
    """A report as lines. colours: trained tokens are coloured, else set in ⟦ ⟧."""
    counts, split = report.counts, report.split
    for name, layout in zip(report.files, report.layouts, strict=True):
        yield f"{name}: {layout}"
    number = "1 row" if counts.rows == 1 else f"{counts.rows} rows"
    yield f"{number}: {counts.tasks} usable, {counts.bad} not"
    disputed = f"{counts.disputed} prompts with different answers"
    yield f"{counts.answered} with an answer, {counts.repeated} repeated, {disputed}"
    yield f"{split.train} train, {split.valid} validate, {split.overlap} on both sides"
    if len(counts.skills) > 1:
        yield ", ".join(f"{name or 'other'} {n}" for name, n in counts.skills.items())
    yield from _length_words(report)
    for row in report.seen:
        yield ""
        yield from _row_words(row, colours)
    if report.probe is not None:
        yield ""
        yield report.probe.sentence
    for finding in report.findings:
        yield ""
        sign = "Stop" if finding.level == "stop" else "Note"
        yield f"{sign} [{finding.code}] {finding.message} {finding.action}"
    if report.trainable:
        yield ""
        yield "Nothing here stands against training."


def _length_words(report: DataReport) -> Iterator[str]:
    lengths, template = report.lengths, report.template
    if lengths is None or template is None:
        return
    scripts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in template.scripts.items())
    yield (
        f"{template.model}: {template.family}, system prompts "
        f"{'taken' if template.system else 'refused'}; {scripts or 'no letters'}, "
        f"{template.characters_per_token} characters a token"
    )
    yield (
        f"Blocks of {lengths.block} tokens, context {lengths.context}, rows up to {lengths.limit}; "
        f"prompts {lengths.prompt.median} (longest {lengths.prompt.longest}), "
        f"answers {lengths.answer.median} (longest {lengths.answer.longest})"
    )
    most = max(1, *lengths.counts)
    names = [f"to {edge}" for edge in lengths.edges] + [f"over {lengths.edges[-1]}"]
    for name, count in zip(names, lengths.counts, strict=True):
        if count:
            yield f"{name:>10} {count:6d} {'#' * max(1, round(BAR * count / most))}"


def _row_words(row: SeenRow, colours: bool) -> Iterator[str]:
    yield f"{row.id}: {row.prompt_tokens} tokens read, {row.trained_tokens} trained"
    read = "".join(token.text for token in row.tokens if not token.trained)
    trained = "".join(token.text for token in row.tokens if token.trained)
    start, end = ("\x1b[32m", "\x1b[0m") if colours else ("⟦", "⟧")
    yield f"{read}{start}{trained}{end}" if trained else read
