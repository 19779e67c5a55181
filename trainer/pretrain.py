"""Pretrains the demo model: block diffusion over generated examples, on one GPU.

    python -m trainer.pretrain --config demo --tokenizer assets/demo --run runs/demo --steps 20000

A run can be cut: `--max-seconds` ends a piece cleanly and the same command continues it. See
docs/demo-model.md for the commands of the demo that ships.
"""

# Worker processes import this module again: what needs torch is imported where it is used.
from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from trainer.demo_config import DemoConfig, Vocabulary
    from trainer.pretrain_loop import Data, Pretrainer
    from trainer.pretrain_model import ComputePath, TrainingModel

BEGAN = time.monotonic()
RESERVE = 20.0  # seconds kept at the end of a piece for its checkpoint and the final measurement


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m trainer.pretrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--config", default="demo", help="recipe: demo or tiny (default: demo)")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the recipe, e.g. optimiser.muon_lr=0.001, shape.layers=10",
    )
    p.add_argument(
        "--tokenizer", type=Path, default=Path("assets/demo"), help="folder with tokenizer.json"
    )
    p.add_argument(
        "--run", type=Path, required=True, help="folder of the run; resumed if it has one"
    )
    p.add_argument("--data", type=Path, help="folder of the examples' files (default: RUN/data)")
    p.add_argument("--steps", type=int, help="the run is complete after this many updates")
    p.add_argument(
        "--budget", type=float, help="instead: complete after this many seconds of training in all"
    )
    p.add_argument(
        "--max-seconds",
        type=float,
        help="end this piece, saved, when the process is this old (the run may go on later)",
    )
    p.add_argument(
        "--finish",
        action="store_true",
        help="make this the last piece: the run is complete when --max-seconds are over",
    )
    p.add_argument(
        "--carry", type=Path, metavar="DIR", help="also write small files of the run to DIR"
    )
    p.add_argument(
        "--adopt",
        type=Path,
        metavar="DIR",
        help="if RUN is new, continue from files that --carry wrote (momentum starts from zero; "
        "with another seed, on fresh examples)",
    )
    p.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    p.add_argument("--compile", action="store_true", help="use torch.compile")
    p.add_argument("--experts", choices=("grouped", "wide"), help="how experts are computed")
    p.add_argument("--attention", choices=("flex", "dense"), help="flex needs --compile on a GPU")
    p.add_argument("--no-check", action="store_true", help="skip the proof of the compute path")
    p.add_argument("--check-only", action="store_true", help="prove the compute path and end")
    p.add_argument("--workers", type=int, help="processes that make examples (default: cores - 2)")
    p.add_argument(
        "--trial", type=float, metavar="SECONDS", help="train each of --variants this long; no run"
    )
    p.add_argument(
        "--variants",
        default="base",
        help="for --trial: 'base; name: field=value, field=value; ...' (names are for the table)",
    )
    return p


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; 0 when the piece ended as asked."""
    args = parser().parse_args(arguments)
    from engine.errors import UnblurError

    try:
        return _run(args)
    except UnblurError as error:
        print(error, file=sys.stderr)
        return 1


def _say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f}] {text}", flush=True)


def _run(args: argparse.Namespace) -> int:
    run: Path = args.run
    run.mkdir(parents=True, exist_ok=True)
    # Compiled code is kept with the run, so that its next piece starts sooner.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str((run / "compiled").resolve()))
    from trainer.demo_config import CONFIGS
    from trainer.pretrain_loop import Data

    if args.config not in CONFIGS:
        raise _bad(f"--config {args.config} is not one of {', '.join(CONFIGS)}.")
    try:
        config = CONFIGS[args.config].with_changes(_pairs(args.set))
    except ValueError as error:
        raise _bad(f"--set: {error}.") from error
    if args.trial is None and not args.check_only and (args.steps is None) == (args.budget is None):
        raise _bad("give either --steps or --budget.")
    if not (args.tokenizer / "tokenizer.json").exists():
        raise _bad(f"{args.tokenizer} holds no tokenizer.json.")
    cores = os.cpu_count() or 1
    workers = max(0, cores - 2) if args.workers is None else args.workers
    data = Data(config, args.tokenizer, args.data or run / "data", workers)
    try:
        return _with_data(args, config, data)
    finally:
        data.close()


def _with_data(args: argparse.Namespace, config: DemoConfig, data: Data) -> int:
    import torch

    from trainer.pretrain_loop import Cadence, Goal, Pretrainer, new_model
    from trainer.pretrain_model import ComputePath

    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    vocabulary = read_vocabulary(args.tokenizer)
    if device.type == "cuda":
        _say(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    path = ComputePath.of(device, args.compile, experts=args.experts, attention=args.attention)
    facts: dict[str, Any] = {"device": _device_words(device), "torch": str(torch.__version__)}
    if args.check_only or (args.compile and not args.no_check):
        model = _checked(args, config, vocabulary, data, path, facts, device)
    else:
        model = new_model(config, vocabulary, device, path)
    if args.check_only:
        return 0
    if args.trial is not None:
        from trainer.pretrain_trial import compare

        return compare(
            args.variants, args.trial, config, vocabulary, data, device, model.path, _say
        )
    trainer = Pretrainer(config, model, data, args.run, _say)
    if trainer.resume():
        _say(f"continuing {args.run} at step {trainer.step}")
    elif args.adopt is not None:
        trainer.adopt(args.adopt)
        _say(f"continuing the files in {args.adopt} at step {trainer.step}, momentum from zero")
    _say(
        f"{trainer.spec.parameters / 1e6:.1f} M parameters, "
        f"{config.tokens_per_step} positions a step"
    )
    stop_at = None if args.max_seconds is None else BEGAN + args.max_seconds - RESERVE
    goal = Goal(args.steps, args.budget)
    if args.finish:
        if stop_at is None:
            raise _bad("--finish needs --max-seconds.")
        goal = Goal(None, trainer.seconds + max(1.0, stop_at - time.monotonic()))
        stop_at = None  # the goal ends this piece
    trainer.curve.pieces.append(
        {
            **facts,
            "from_step": trainer.step,
            "path": vars(model.path),
            "goal": vars(goal),
            "warm_from": trainer.warm_from,
            "config": config.as_json(),
        }
    )
    complete = trainer.train(goal, Cadence(stop_at=stop_at), args.carry)
    _summary(trainer, complete)
    return 0


def _checked(
    args: argparse.Namespace,
    config: DemoConfig,
    vocabulary: Vocabulary,
    data: Data,
    path: ComputePath,
    facts: dict[str, Any],
    device: torch.device,
) -> TrainingModel:
    """A model on the first path that is right; what was found goes into `facts`."""
    from trainer.pretrain_check import alternatives, choose_path
    from trainer.pretrain_loop import Validation

    valid = Validation(config, data.valid, device)
    data.valid.rewind()
    named = args.experts is not None or args.attention is not None
    paths = [path] if named else alternatives(path)
    outcome = choose_path(config, vocabulary, valid.store, valid.plans[0], device, paths, _say)
    facts["largest_gradient_difference"] = outcome.difference
    facts["largest_difference_in"] = outcome.worst
    facts["given_up"] = list(outcome.given_up)
    return outcome.model


def read_vocabulary(folder: Path) -> Vocabulary:
    """The special ids of a tokenizer folder."""
    from trainer.data.template import ChatEncoder
    from trainer.demo_config import Vocabulary

    encoder = ChatEncoder.from_folder(folder)
    size = encoder.tokenizer.get_vocab_size(with_added_tokens=True)
    return Vocabulary(size, encoder.mask_id, encoder.end_of_text_id, encoder.role_end_id)


def _summary(trainer: Pretrainer, complete: bool) -> None:
    both = trainer.measure_both()
    _say("the run is complete" if complete else "the piece is over; the run is not complete")
    print(f"  steps               {trainer.step}")
    print(f"  training seconds    {trainer.seconds:.1f}")
    print(f"  positions computed  {trainer.tokens / 1e6:.1f} M")
    print(f"  answer positions    {trainer.answer_tokens / 1e6:.1f} M in noisy copies")
    print(f"  examples            {len(trainer.store.rows)} ({trainer.store.refused} too long)")
    print(f"  epochs              {trainer.packer.epochs_seen:.2f}")
    for name, (loss, right) in both.items():
        print(f"  valid as {name:9s}  loss {loss:.4f}, right {100 * right:.2f} %")
    sys.stdout.flush()


def _device_words(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _pairs(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign:
            raise _bad(f"{item!r} is not FIELD=VALUE.")
        pairs[name.strip()] = value.strip()
    return pairs


def _bad(problem: str) -> Exception:
    from engine.errors import RequestError

    return RequestError("pretrain.arguments", problem, "See python -m trainer.pretrain --help.")


if __name__ == "__main__":
    sys.exit(main())
