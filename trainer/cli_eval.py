"""`python -m trainer eval`: figures of one model, or of a base against a tuned one, on a file.

Knows words and exit codes. What is measured is `trainer.evaluate`'s.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from engine.errors import RequestError
from trainer.data.task import Task
from trainer.verify.verifier_spec import VerifierSpec

HELP = "See python -m trainer eval -h."


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`eval`."""
    p = commands.add_parser("eval", help="accuracy, TPF and forwards of a model on a file of tasks")
    p.add_argument("model", type=Path, help="a model folder")
    p.add_argument("--data", action="append", required=True, metavar="FILE")
    p.add_argument("--tuned", type=Path, metavar="DIR", help="another model, on the same prompts")
    p.add_argument("--verifier", default='{"kind": "number"}', help="as in a spec, JSON")
    p.add_argument("--thresholds", help="such as 0.7,0.9 (default: the checkpoint's own)")
    p.add_argument("--tasks", type=int, help="at most so many, from the first")
    p.add_argument("--max-new-tokens", type=int, default=256)
    p.add_argument("--rows", type=int, default=64, help="replies side by side")
    p.add_argument("--window", type=int, default=32, help="blocks of the longest prompt and answer")
    p.add_argument("--device")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    p.add_argument("--png", type=Path, metavar="FILE", help="draw accuracy against TPF there")
    p.set_defaults(do=_eval)


def _eval(args: argparse.Namespace) -> int:
    from trainer.evaluate import Answers, Evaluator, compared, report
    from trainer.pareto import save
    from trainer.verify.registry import make_verifier

    spec, wanted = _options(args)
    tasks = _tasks(args)
    found: list[list[Answers]] = []
    for folder in (args.model, *([args.tuned] if args.tuned else [])):
        one = Evaluator(folder, make_verifier(spec), args.rows, args.window, args.device)
        if found and one.name == found[0][0].model:
            one.name += " (tuned)"  # two folders of one name are two models
        found.append([one.answer(tasks, t, args.max_new_tokens) for t in wanted])
        one.learner.close()
    everything = [answers for row in found for answers in row]
    value = report(everything)
    head = ("threshold", 10), ("right %", 9), ("TPF", 7), ("ceiling", 9), ("forwards", 10)
    print(f"{'model':24}" + "".join(f"{t:>{n}}" for t, n in (*head, ("tok/s", 9))))
    for a in everything:
        f = a.figures
        print(
            f"{a.model[:23]:24}{a.threshold:>10.2f}{100 * f['accuracy']:>9.1f}{f['tpf']:>7.2f}"
            f"{f['ceiling']:>9.2f}{f['forwards']:>10.2f}{f['tokens_per_second']:>9.0f}"
        )
    if args.tuned:
        value["compared"] = [compared(b, t) for b, t in zip(*found, strict=True)]
        for row, answers in zip(value["compared"], found[0], strict=True):
            low, high = row["accuracy_interval"]
            slow, fast = row["tpf_ratio_interval"]
            print(
                f"at {answers.threshold:.2f}: {100 * row['accuracy_change']:+.1f} points "
                f"({100 * low:+.1f} to {100 * high:+.1f}), TPF x {row['tpf_ratio']:.2f} "
                f"({slow:.2f} to {fast:.2f})"
            )
            for skill, change in row["worse_skills"].items():
                print(f"  worse: {skill or 'no group'} {100 * change:+.1f} points")
    if args.json:
        _write(args.json, lambda: args.json.write_text(json.dumps(value, indent=1) + "\n", "utf-8"))
    if args.png:
        _write(args.png, lambda: save(value, args.png))
    return 0


def _write(path: Path, work: Callable[[], object]) -> None:
    try:
        work()
    except OSError as error:
        raise RequestError(
            "eval.write", f"{path} cannot be written: {error}.", "Name a file elsewhere."
        ) from error


def _options(args: argparse.Namespace) -> tuple[VerifierSpec, list[float] | list[None]]:
    """The verifier and the thresholds. Raises RequestError `eval.option` or `spec.field`."""
    from trainer.strict_json import read

    try:
        spec = read(VerifierSpec, json.loads(args.verifier), "verifier")
        wanted = [float(t) for t in args.thresholds.split(",")] if args.thresholds else [None]
    except ValueError as error:
        raise RequestError("eval.option", f"An option cannot be read: {error}.", HELP) from error
    checks = (
        (all(t is None or 0.0 < t <= 1.0 for t in wanted), "--thresholds lie above 0, up to 1"),
        (args.tasks is None or args.tasks >= 1, "--tasks is at least 1"),
        (args.max_new_tokens >= 1, "--max-new-tokens is at least 1"),
        (args.rows >= 1, "--rows is at least 1"),
        (args.window >= 2, "--window is at least 2"),
    )
    for good, rule in checks:
        if not good:
            raise RequestError("eval.option", f"{rule}.", HELP)
    return spec, wanted


def _tasks(args: argparse.Namespace) -> list[Task]:
    """What is asked: the prompts that fit every model. Raises RequestError `eval.nothing`, or as
    `load_tasks`."""
    from trainer.data.encoding import ModelEncoder, prompts_that_fit
    from trainer.data.readers import load_tasks

    loaded = load_tasks(tuple(args.data))
    if loaded.bad_count:
        print(f"{loaded.bad_count} rows are no examples and are left out: {loaded.bad[0]}.")
    tasks = list(loaded.tasks)[: args.tasks]
    for folder in (args.model, *([args.tuned] if args.tuned else [])):
        encoder = ModelEncoder.open(folder)
        tasks, unfit = prompts_that_fit(encoder, tasks, args.window * encoder.spec.block_length)
        if unfit:
            print(f"{len(unfit)} prompts do not fit {args.window} blocks and are left out.")
    if not tasks:
        raise RequestError(
            "eval.nothing",
            "No prompt is left to ask.",
            "Give a file with examples, or a longer --window.",
        )
    return list(tasks)
