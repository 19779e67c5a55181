"""Measures a demo checkpoint: verified accuracy, TPF, its ceiling and forwards per answer by skill.

    python -m trainer.demo_eval --model nvfp4=assets/demo --model bf16=runs/demo-bf16 \
        --arm nvfp4:0.95:heldout --arm bf16:0.95:heldout --per-skill 500 --out runs/demo-eval

Prompts come from the generators' held-out splits, replies from the engine's batched decoding,
verdicts from `trainer.verify`. Replies are kept, so that `--judge-only` can judge them again on
another machine. TPF and its ceiling are those of docs/how-it-works.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError, UnblurError
from engine.types import DecodeSettings, Message
from trainer.data.skills import SKILLS, Example, Split, generate_examples
from trainer.data.template import ChatEncoder

if TYPE_CHECKING:
    from engine.engine import TorchEngine

SPLITS: dict[str, Split] = {
    "heldout": "heldout",
    "heldout_templates": "heldout_templates",
    "valid": "valid",
}
ROOM = 96  # tokens a reply may have beyond the longest reference of its batch


@dataclass(frozen=True)
class Arm:
    """One measurement: a model by name, how it decodes, and on which prompts.

    editing: editing threshold, None = off.
    """

    model: str
    threshold: float
    editing: float | None
    split: Split

    @classmethod
    def read(cls, text: str) -> Arm:
        """`nvfp4:0.95:heldout`, or `nvfp4:0.95/0.9:heldout` with an editing threshold."""
        try:
            model, rule, split = text.split(":")
            threshold, _, editing = rule.partition("/")
            return cls(model, float(threshold), float(editing) if editing else None, SPLITS[split])
        except (ValueError, KeyError) as error:
            raise RequestError(
                "demo_eval.arm",
                f"{text!r} is not MODEL:THRESHOLD[/EDITING]:SPLIT.",
                "Write, say, nvfp4:0.95:heldout.",
            ) from error

    @property
    def name(self) -> str:
        editing = "" if self.editing is None else f"/{self.editing:g}"
        return f"{self.model}:{self.threshold:g}{editing}:{self.split}"

    @property
    def settings(self) -> DecodeSettings:
        return DecodeSettings(threshold=self.threshold, editing_threshold=self.editing)


@dataclass(frozen=True)
class Reply:
    """One answer. tokens: up to and including the stop token. blocks: blocks it took."""

    text: str
    tokens: int
    forwards: int
    blocks: int
    stopped: bool


@dataclass(frozen=True)
class Score:
    """Figures of one skill in one arm, or of all skills (their plain mean, for accuracy)."""

    skill: str
    prompts: int
    right: float
    tokens: float
    forwards: float
    tpf: float
    ceiling: float
    stopped: float


def _examples(seed: int, split: Split, skill: str, count: int) -> list[Example]:
    return list(generate_examples(seed, 0, count, split, skills=[skill]))


def collect(seed: int, splits: Sequence[Split], count: int) -> dict[Split, list[Example]]:
    """`count` prompts of every skill for each split, made in parallel (a held-out prompt is one
    draw in a hundred)."""
    names = sorted(SKILLS)
    jobs: list[tuple[Split, str]] = [(split, name) for split in splits for name in names]
    workers = min(len(jobs), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_examples, seed, split, name, count) for split, name in jobs]
        found: dict[Split, list[Example]] = {}
        for (split, _), future in zip(jobs, futures, strict=True):
            found.setdefault(split, []).extend(future.result())
    return found


def load(folder: Path, device: str | None) -> TorchEngine:
    """A model with its weights expanded once (as fast for both formats, and the same values)."""
    import torch

    from engine.checkpoint import open_checkpoint
    from engine.engine import TorchEngine
    from engine.loading import Placement, build_model
    from engine.tokenizer import ChatTokenizer

    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    placement = Placement(target, dtype, True, "weights are expanded once")
    checkpoint = open_checkpoint(folder)
    try:
        model = build_model(checkpoint, placement)
        return TorchEngine(checkpoint, model, placement, ChatTokenizer.open(folder))
    finally:
        checkpoint.release()


def answer(
    engine: TorchEngine,
    encoder: ChatEncoder,
    examples: Sequence[Example],
    settings: DecodeSettings,
    batch: int,
) -> list[Reply]:
    """Replies in the order of the examples, decoded in batches of about equal answer lengths."""
    prompts = [encoder.encode_prompt([Message("user", e.prompt)]) for e in examples]
    references = encoder.tokenizer.encode_batch_fast([e.answer for e in examples])
    sizes = [len(reference.ids) + 1 for reference in references]
    block = engine.info.block_length
    order = sorted(
        range(len(examples)), key=lambda n: ((len(prompts[n]) % block + sizes[n]) // block, n)
    )
    stops = frozenset(engine.info.stop_ids)
    replies: dict[int, Reply] = {}
    # Equal batches, the last one filled up: a captured runtime serves one batch size.
    size = -(-len(order) // -(-len(order) // batch))
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        chosen += chosen[:1] * (size - len(chosen))
        longest = max(sizes[n] for n in chosen) + ROOM
        out = engine.generate_batch([prompts[n] for n in chosen], settings, longest, len(chosen))
        for index, reply in zip(chosen, out, strict=True):
            text = engine.decode([token for token in reply.ids if token not in stops])
            stopped = reply.reason == "stop_token"
            replies[index] = Reply(text, len(reply.ids), reply.forwards, reply.blocks, stopped)
    return [replies[n] for n in range(len(examples))]


def score(examples: Sequence[Example], replies: Sequence[Reply], right: list[bool]) -> list[Score]:
    """One score a skill and their mean, which comes last."""
    scores = []
    for skill in sorted({example.skill for example in examples}):
        chosen = [n for n, example in enumerate(examples) if example.skill == skill]
        mine = [replies[n] for n in chosen]
        share = sum(right[n] for n in chosen) / len(chosen)
        scores.append(_score(skill, mine, share))
    mean = sum(s.right for s in scores) / len(scores)
    return [*scores, _score("all", list(replies), mean)]


def _score(skill: str, replies: list[Reply], right: float) -> Score:
    count = len(replies)
    tokens, forwards = sum(r.tokens for r in replies), sum(r.forwards for r in replies)
    blocks = sum(r.blocks for r in replies)
    return Score(
        skill=skill,
        prompts=count,
        right=right,
        tokens=tokens / count,
        forwards=forwards / count,
        tpf=tokens / max(1, forwards),
        ceiling=tokens / max(1, blocks),
        stopped=sum(r.stopped for r in replies) / count,
    )


def judge(examples: Sequence[Example], replies: Sequence[Reply]) -> tuple[list[bool], list[str]]:
    """Verdicts of the skill's verifier and, where wrong, why."""
    from trainer.verify import verify_many

    verdicts = verify_many(examples, [reply.text for reply in replies])
    return [v.ok for v in verdicts], [v.reason for v in verdicts]


def markdown(results: dict[str, list[Score]]) -> str:
    """The tables of docs/demo-model.md: one a measurement, and accuracies side by side."""
    lines = []
    for arm, scores in results.items():
        lines += [
            f"### {arm}",
            "",
            "| skill | prompts | verified % | tokens | forwards | TPF | ceiling | stopped % |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {s.skill} | {s.prompts} | {100 * s.right:.1f} | {s.tokens:.1f} | "
            f"{s.forwards:.1f} | {s.tpf:.2f} | {s.ceiling:.2f} | {100 * s.stopped:.1f} |"
            for s in scores
        ]
        lines.append("")
    if len(results) > 1:
        arms = list(results)
        lines += [
            "### Verified % side by side",
            "",
            "| skill | " + " | ".join(arms) + " |",
            "|---" * (len(arms) + 1) + "|",
        ]
        by_skill = {arm: {s.skill: s for s in scores} for arm, scores in results.items()}
        for skill in by_skill[arms[0]]:
            cells = (f"{100 * by_skill[arm][skill].right:.1f}" for arm in arms)
            lines.append(f"| {skill} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _measure(args: argparse.Namespace, arms: list[Arm], models: dict[str, Path]) -> dict[str, Any]:
    """Decodes every arm; returns the record with replies and no verdicts yet."""
    began = time.monotonic()
    splits: list[Split] = list(dict.fromkeys(arm.split for arm in arms))
    prompts = collect(args.seed, splits, args.per_skill)
    print(f"[{time.monotonic() - began:6.1f}] prompts ready", flush=True)
    record: dict[str, Any] = {"seed": args.seed, "per_skill": args.per_skill, "arms": {}}
    engines: dict[str, TorchEngine] = {}
    for arm in arms:
        if args.max_seconds is not None and time.monotonic() - began > args.max_seconds:
            print(f"out of time: {arm.name} is not measured", flush=True)
            continue
        folder = models[arm.model]
        if arm.model not in engines:
            engines[arm.model] = load(folder, args.device)
        encoder = ChatEncoder.from_folder(folder)
        start = time.monotonic()
        replies = answer(engines[arm.model], encoder, prompts[arm.split], arm.settings, args.batch)
        seconds = time.monotonic() - start
        record["arms"][arm.name] = {
            **asdict(arm),
            "seconds": seconds,
            "replies": [asdict(r) for r in replies],
        }
        args.out.mkdir(parents=True, exist_ok=True)
        part = args.out / "replies.json.part"  # a kill while writing keeps the arms before
        part.write_text(json.dumps(record), encoding="utf-8")
        part.replace(args.out / "replies.json")
        print(
            f"[{time.monotonic() - began:6.1f}] {arm.name}: {len(replies)} replies in "
            f"{seconds:.1f} s on {engines[arm.model].info.device}",
            flush=True,
        )
    return record


def _report(out: Path, record: dict[str, Any]) -> None:
    """Judges the replies of a record; prints and writes the tables and the figures."""
    arms = {
        name: Arm(a["model"], a["threshold"], a["editing"], a["split"])
        for name, a in record["arms"].items()
    }
    splits: list[Split] = list(dict.fromkeys(arm.split for arm in arms.values()))
    prompts = collect(record["seed"], splits, record["per_skill"])
    results: dict[str, list[Score]] = {}
    figures: dict[str, Any] = {"seed": record["seed"], "per_skill": record["per_skill"]}
    mistakes: dict[str, Any] = {}
    for name, arm in arms.items():
        examples = prompts[arm.split]
        replies = [Reply(**r) for r in record["arms"][name]["replies"]]
        right, reasons = judge(examples, replies)
        results[name] = score(examples, replies, right)
        mistakes[name] = _mistakes(examples, replies, right, reasons)
    figures["results"] = {name: [asdict(s) for s in scores] for name, scores in results.items()}
    figures["mistakes"] = mistakes
    text = markdown(results)
    (out / "evaluation.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (out / "evaluation.md").write_text(text, encoding="utf-8")
    print(text)


def _mistakes(
    examples: Sequence[Example], replies: Sequence[Reply], right: list[bool], reasons: list[str]
) -> list[dict[str, str]]:
    """Up to eight wrong replies of each skill, to look at."""
    found: list[dict[str, str]] = []
    for example, reply, ok, reason in zip(examples, replies, right, reasons, strict=True):
        if not ok and sum(m["skill"] == example.skill for m in found) < 8:
            found.append(
                {
                    "skill": example.skill,
                    "template": example.template,
                    "prompt": example.prompt,
                    "reply": reply.text,
                    "reference": example.answer,
                    "reason": reason,
                }
            )
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m trainer.demo_eval",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--model", action="append", default=[], metavar="NAME=DIR")
    p.add_argument("--arm", action="append", default=[], help="MODEL:THRESHOLD[/EDITING]:SPLIT")
    p.add_argument("--per-skill", type=int, default=500, help="prompts of each skill and split")
    p.add_argument("--seed", type=int, default=1, help="seed of the prompts")
    p.add_argument("--batch", type=int, default=1024, help="replies decoded side by side")
    p.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    p.add_argument("--max-seconds", type=float, help="begin no arm after this time")
    p.add_argument("--out", type=Path, required=True, help="folder for replies and tables")
    p.add_argument("--no-judge", action="store_true", help="only decode and keep the replies")
    p.add_argument("--judge-only", action="store_true", help="judge the replies kept in --out")
    return p


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    args = parser().parse_args(arguments)
    try:
        if args.judge_only:
            record = json.loads((args.out / "replies.json").read_text(encoding="utf-8"))
        else:
            models = {name: Path(path) for name, _, path in (m.partition("=") for m in args.model)}
            arms = [Arm.read(text) for text in args.arm]
            unknown = {arm.model for arm in arms} - set(models)
            if unknown or not arms:
                raise RequestError(
                    "demo_eval.arm",
                    f"no --model is named {', '.join(sorted(unknown)) or 'by an --arm'}.",
                    "See python -m trainer.demo_eval --help.",
                )
            record = _measure(args, arms, models)
        if not args.no_judge:
            _report(args.out, record)
    except UnblurError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
