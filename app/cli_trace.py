"""`unblur trace`: replies recorded step by step, shown, continued otherwise and explained.

It knows arguments and what is printed; no Qt, and torch only for the commands that run a model.
What is measured and how a fork runs is the engine's knowledge. `export` and `diff` are
`app.cli_trace_export`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from app.cli_trace_export import add_export_and_diff
from app.cli_trace_show import (
    attribution_json,
    attribution_lines,
    print_json,
    show_lines,
    summary_lines,
    trace_json,
)
from engine.cli import (
    INTERRUPTED,
    add_model_options,
    add_settings_options,
    changed_settings,
    engine_from,
    guarded,
    request_from,
    stopping_on_interrupt,
)
from engine.errors import UnblurError
from engine.trace import (
    EVERYWHERE,
    EXTENSION,
    Change,
    Fork,
    Trace,
    TraceError,
    open_trace,
    record,
    record_fork,
    save_trace,
)
from engine.trace.attribution import Reach
from engine.types import Capture, CaptureLevel, DecodeSettings

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # the type that add_subparsers gives

LEVELS: tuple[CaptureLevel, ...] = ("light", "top-k", "full")  # "off" records nothing


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unblur trace",
        description="Record replies step by step, look at them, and ask what would have been.",
        epilog="Positions are counted from the prompt's first token, steps from the reply's first. "
        "show, export and diff need no model. Every command takes --json and --help. Others: "
        "record --output, --level, --candidates, --positions, --force; show --step, --position; "
        "fork --put, --ban, --mask; attribute --reach; export --format, --fill, --dark, --speed, "
        "--every.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_record(commands)
    _add_show(commands)
    _add_fork(commands)
    _add_attribute(commands)
    add_export_and_diff(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit status of `unblur trace ARGV`: 0 done, 1 a failure (told on stderr), 2 wrong usage, 130
    stopped by Ctrl+C."""

    def command() -> int:
        options = make_parser().parse_args(argv)
        try:
            return options.run(options)
        except UnblurError as error:
            if error.code == "request.stopped":  # by Ctrl+C
                print(error.message, file=sys.stderr)
                return INTERRUPTED
            if not options.json:
                raise
            told = {"code": error.code, "message": error.message, "action": error.action}
            print(json.dumps({"error": told}), file=sys.stderr)
            return 1

    return guarded(command)


def _command(
    commands: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=text, description=text)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.set_defaults(run=run)
    return made


def _add_record(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    made = _command(commands, "record", "Answer a prompt and keep every step.", run_record)
    made.add_argument("prompt", help="what to ask")
    made.add_argument("--system", default="", help="system prompt")
    made.add_argument("--max-new-tokens", type=int, default=256)
    _add_output(made)
    add_settings_options(made)
    add_model_options(made)


def _add_show(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    made = _command(commands, "show", "Print what a trace holds.", run_show)
    made.add_argument("trace", type=Path, help="a .dntrace file")
    made.add_argument("--step", type=int, help="the canvas after this step")
    made.add_argument("--position", type=int, help="everything that happened at this position")


def _add_fork(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Take a recorded reply again, with a change from a step on."
    made = _command(commands, "fork", text, run_fork)
    made.add_argument("trace", type=Path, help="a .dntrace file")
    made.add_argument("--step", type=int, required=True, help="the change is made at its start")
    made.add_argument(
        "--put",
        action="append",
        default=[],
        metavar="POSITION=TOKEN",
        help="hold this token there (an id, or the text of one that is in the trace)",
    )
    made.add_argument(
        "--ban",
        action="append",
        default=[],
        metavar="POSITION=TOKEN",
        help="never propose this token there; 'any' for all positions",
    )
    made.add_argument(
        "--mask",
        action="append",
        default=[],
        type=int,
        metavar="POSITION",
        help="take back what stands there",
    )
    _add_output(made)
    add_settings_options(made)
    add_model_options(made)


def _add_attribute(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Say how much each token accepted before adds to a confidence."
    made = _command(commands, "attribute", text, run_attribute)
    made.add_argument("trace", type=Path, help="a .dntrace file")
    made.add_argument("--step", type=int, required=True)
    made.add_argument("--position", type=int, required=True)
    made.add_argument(
        "--reach",
        choices=get_args(Reach),
        default="near",
        help="tokens of the step's block, of the one before, too (near), or of the whole reply",
    )
    add_model_options(made)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .dntrace to write")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--level", choices=LEVELS, help="what is kept (top-k, or full with --positions)"
    )
    parser.add_argument("--candidates", type=int, default=16, help="tokens kept a position")
    parser.add_argument(
        "--positions", default="", metavar="P,P", help="whose logits are kept at level full"
    )


def run_record(options: argparse.Namespace) -> int:
    """Records one reply. A reply stopped by Ctrl+C is kept as far as it got."""
    _check_output(options.output, options.force)
    capture = _capture(options)
    engine = engine_from(options)
    try:
        request = request_from(options, options.prompt, engine.info, capture)
        with stopping_on_interrupt() as stop:
            trace = record(engine, request, stop)
    finally:
        engine.unload()
    return _keep(trace, options, stop)


def run_fork(options: argparse.Namespace) -> int:
    """Runs and keeps a fork."""
    _check_output(options.output, options.force, options.trace)
    parent = open_trace(options.trace)
    fork = Fork(parent, options.step, _change(parent, options), _capture(options))
    engine = engine_from(options)
    try:
        with stopping_on_interrupt() as stop:
            trace = record_fork(engine, fork, stop)
    finally:
        engine.unload()
    return _keep(trace, options, stop)


def run_show(options: argparse.Namespace) -> int:
    """Prints a trace, one of its steps, or one of its positions."""
    trace = open_trace(options.trace)
    if options.json:
        print_json(trace_json(trace, options.step, options.position))
        return 0
    for line in show_lines(trace, options.step, options.position):
        print(line)
    return 0


def run_attribute(options: argparse.Namespace) -> int:
    """Runs one step again without each token in turn."""
    trace = open_trace(options.trace)
    engine = engine_from(options)
    try:
        with stopping_on_interrupt() as stop:
            found = engine.attribute(trace, options.step, options.position, options.reach, stop)
    finally:
        engine.unload()
    if options.json:
        print_json(attribution_json(trace, found))
        return 0
    for line in attribution_lines(trace, found):
        print(line)
    return 0


def _keep(trace: Trace, options: argparse.Namespace, stop: threading.Event) -> int:
    if not options.json:  # first of all, so that the text is there even if the disk is full
        for line in summary_lines(trace):
            print(line)
    save_trace(trace, options.output)
    if options.json:
        facts = {"path": str(options.output), "bytes": options.output.stat().st_size}
        print_json({**facts, **trace_json(trace, None, None)})
    else:
        print(f"Written: {options.output}")
    return INTERRUPTED if stop.is_set() else 0


def _check_output(path: Path, force: bool, source: Path | None = None) -> None:
    """Before a model is loaded: a reply that could not be kept is not worth waiting for."""
    if path.suffix != EXTENSION:
        raise _wrong(f"{path.name} does not end in {EXTENSION}.", f"Call it {path.name}{EXTENSION}")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise _wrong("The fork would replace the trace it comes from.", "Choose another name")
    if path.exists() and not force:
        raise _wrong(f"{path.name} is there already.", "Choose another name, or add --force")
    if not path.absolute().parent.is_dir():
        raise _wrong(f"There is no folder {path.parent}.", "Make it first")
    if not os.access(path.absolute().parent, os.W_OK):
        raise _wrong(f"The folder {path.parent} cannot be written.", "Choose another one")


def _wrong(problem: str, action: str) -> TraceError:
    return TraceError("trace.output", problem, f"{action}.")


def _capture(options: argparse.Namespace) -> Capture:
    positions = tuple(_number(text, "--positions") for text in options.positions.split(",") if text)
    level = options.level or ("full" if positions else "top-k")
    return Capture(level, options.candidates, positions)


def _change(parent: Trace, options: argparse.Namespace) -> Change:
    settings = _settings_at(parent, options)
    return Change(
        force=tuple(_pair(parent, text, "--put", anywhere=False) for text in options.put),
        ban=tuple(_pair(parent, text, "--ban", anywhere=True) for text in options.ban),
        mask=tuple(options.mask),
        settings=settings,
    )


def _settings_at(parent: Trace, options: argparse.Namespace) -> DecodeSettings | None:
    """What the options make of the parent's last settings; None where they change nothing."""
    base = parent.header.settings or DecodeSettings()
    for ancestor in parent.header.ancestry:
        base = ancestor.change.settings or base
    changed = changed_settings(options, base)
    return None if changed == base else changed


def _pair(trace: Trace, text: str, option: str, *, anywhere: bool) -> tuple[int, int]:
    where, equals, token = text.partition("=")
    if not equals:
        raise _usage(f"{option} {text}: a position, an equals sign and a token are needed.")
    position = EVERYWHERE if anywhere and where == "any" else _number(where, option)
    return position, _token(trace, token, option)


def _token(trace: Trace, text: str, option: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    found = [token for token, piece in trace.header.pieces.items() if piece == text]
    if len(found) != 1:
        count = "no token" if not found else f"{len(found)} tokens"
        raise _usage(f"{option}: {count} of the trace read {text!r}; give its number.")
    return found[0]


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _usage(f"{option}: {text!r} is no number.") from None


def _usage(problem: str) -> TraceError:
    return TraceError("trace.usage", problem, "See --help.")
