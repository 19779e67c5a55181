"""The terminal's side of runs: begin, resume, look, pause, stop.

Knows words and exit codes. What a run does is `trainer.loop`'s.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from engine.errors import RequestError
from trainer.events import TrainEvent
from trainer.run_dir import RunDir, all_runs
from trainer.spec import TrainSpec
from trainer.strict_json import write


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`run`, `resume` and `runs`."""
    run = commands.add_parser("run", help="train as a spec file says, in a new folder")
    run.add_argument("spec", type=Path, help="JSON file of a run (docs/training.md)")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    run.add_argument("--json", action="store_true", help="events as JSON lines")
    run.set_defaults(do=_run)
    again = commands.add_parser("resume", help="go on with a run that was cut or stopped")
    again.add_argument("folder", type=Path)
    again.add_argument("--json", action="store_true", help="events as JSON lines")
    again.set_defaults(do=_resume)
    trial = commands.add_parser("estimate", help="time and memory of a run, from a few updates")
    trial.add_argument("spec", type=Path)
    trial.add_argument("--json", action="store_true")
    trial.set_defaults(do=_estimate)
    runs = commands.add_parser("runs", help="look at runs, or tell one to pause, save or stop")
    runs.add_argument("what", choices=("list", "show", "pause", "resume", "save", "stop"))
    runs.add_argument("folder", type=Path, help="a run's folder; for list: the folder of runs")
    runs.add_argument("--json", action="store_true")
    runs.set_defaults(do=_runs)


def _run(args: argparse.Namespace) -> int:
    from trainer.start import start

    ended = start(TrainSpec.open(args.spec), args.out, _reporter(args.json))
    return 0 if ended == "finished" else 3


def _resume(args: argparse.Namespace) -> int:
    from trainer.start import resume

    return 0 if resume(args.folder, _reporter(args.json)) == "finished" else 3


def _estimate(args: argparse.Namespace) -> int:
    from trainer.estimate import estimate

    found = estimate(TrainSpec.open(args.spec))
    if args.json:
        print(json.dumps(write(found)))
        return 0
    if found.teach:
        print(f"an update that teaches   {found.teach:8.2f} s")
    print(f"an ORL update            {found.update:8.2f} s")
    print(f"a measurement            {found.validation:8.2f} s")
    print(f"memory at the peak       {found.peak_bytes / 1e9:8.2f} GB on {found.device}")
    print(f"a checkpoint             {found.checkpoint_bytes / 1e9:8.2f} GB, two are kept")
    print(f"the whole run            {found.total / 60:8.1f} minutes")
    return 0


def _reporter(as_json: bool) -> Callable[[TrainEvent], None]:
    def say(event: TrainEvent) -> None:
        text = event.line() if as_json else words(event)
        if text:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()

    return say


def words(event: TrainEvent) -> str:
    """An event as a line for a person; "" for those that need none."""
    data = event.data
    if event.kind == "metrics":
        names = ("loss", "accuracy", "tpf", "grad_norm")
        found = [f"{n} {data[n]:.4g}" for n in names if isinstance(data.get(n), float)]
        kind = "taught" if data.get("teaching") else "ORL"
        left = data.get("seconds_left")
        if isinstance(left, float):
            found.append(f"about {left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left")
        return f"{event.update:5d}  {kind:6}  " + "  ".join(found)
    if event.kind == "validation":
        return (
            f"{data.get('what', '')}: {100 * data['accuracy']:.1f} % right, TPF {data['tpf']:.2f} "
            f"({100 * data['share_of_ceiling']:.0f} % of its ceiling), "
            f"{data['forwards']:.2f} forwards an answer"
        )
    if event.kind == "state":
        return f"{data.get('state')}: {data.get('text')}"
    return str(data.get("text", "")) if event.kind == "notice" else ""


def _runs(args: argparse.Namespace) -> int:
    if args.what == "list":
        rows = [_row(run) for run in all_runs(args.folder)]
        if args.json:
            print(json.dumps(rows, indent=1))
        elif not rows:
            print(f"There are no runs in {args.folder}.")
        for row in () if args.json else rows:
            print(f"{row['name']:32} {row['state']:9} {row['update']:5d}  {row['reason']}")
        return 0
    run = RunDir.open(args.folder)
    if args.what != "show":
        status = run.status()
        if status.pid is None:
            raise RequestError(
                "run.not_going",
                f"{args.folder.name} is {status.state}: nobody would follow. {status.reason}",
                "Resume it first: python -m trainer resume FOLDER.",
            )
        run.ask(args.what)
        print(f"Told {args.folder.name} to {args.what}; it follows after the update it is in.")
        return 0
    if args.json:
        print(json.dumps(_row(run), indent=1))
        return 0
    for event in run.events():
        if line := words(event):
            print(line)
    status = run.status()
    print(f"{status.state}: {status.reason}")
    return 0


def _row(run: RunDir) -> dict[str, object]:
    status = run.status()
    return {
        "name": run.path.name,
        "state": status.state,
        "update": status.update,
        "reason": status.reason,
        "bytes": run.bytes,
    }
