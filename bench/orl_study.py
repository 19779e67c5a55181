"""ORL on the demo model: every arm of the comparison from the same start, prompts and seeds.

    python bench/orl_study.py prompts --out runs/orl-prompts.json.gz
    python bench/orl_study.py train --prompts runs/orl-prompts.json.gz --arms full,plain \
        --seeds 1,2,3 --updates 60 --out runs/orl
    python bench/orl_study.py table --out runs/orl

The ground (docs/orl-results.md says why): a person's own wording of the demo's tasks, which the
start model half understands. Training prompts, validation prompts and held-out prompts are
disjoint by the hash that splits all of the demo's data; the demo's own phrasings are measured
beside them. `train` may be cut: an arm that is finished is not run again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

DEMO = Path("assets/demo")
POOLS = {  # name: split, prompts a skill
    "own_train": ("heldout_templates", 1500),
    "own_valid": ("heldout_templates", 200),
    "own_heldout": ("heldout_templates", 1000),
    "known_heldout": ("heldout", 500),
    "known_train": ("train", 300),
}
BUCKETS = {"own_train": "train", "own_valid": "valid", "own_heldout": "heldout"}

REPLAY = 3  # a third of the prompts: the start model answers them rightly, and its answers are kept

PLAIN: dict[str, Any] = {
    "residual": False,
    "contraction": 0.0,
    "anchor": 0.0,
    "gate": "all",
    "failed_anchor": False,
}
ARMS: dict[str, dict[str, Any]] = {
    "full": {"gate": "either", "anchor": 0.1, "failed_anchor": True},
    "default": {},
    "plain": PLAIN,
    "no_contraction": {"contraction": 0.0},
    "no_residual": {"residual": False},
    "off_policy": {"keep_rollouts": 8},
    "no_scaling": {"norm_cap": 1e6},
    "no_references": {"floor": 0.0},
    "residual_alone": {**PLAIN, "residual": True},
    "contraction_alone": {**PLAIN, "contraction": 5.0},
    "gentle_anchor": {"gate": "either", "anchor": 0.02},
    "agreement": {"agreement": True},
}


def _draw(pool: str, skill: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts of a skill in a pool, without repeats."""
    from trainer.data.skills import SKILLS
    from trainer.data.skills.base import example_rng, split_of

    split, _ = POOLS[pool]
    wanted = BUCKETS.get(pool)
    found: dict[str, dict[str, Any]] = {}
    index = 0
    while len(found) < count and index < 400 * count:
        rng = example_rng(seed, split, index)  # type: ignore[arg-type]
        index += 1
        example = SKILLS[skill].generate(rng, split)  # type: ignore[arg-type]
        if wanted is None or split_of(example.prompt) == wanted:
            found.setdefault(example.prompt, asdict(example))
    return list(found.values())


def make_prompts(out: Path, seed: int) -> None:
    """Writes all pools; a pool's skill may have fewer prompts than asked for."""
    from trainer.data.skills import SKILLS

    jobs = [(pool, skill, count) for pool, (_, count) in POOLS.items() for skill in SKILLS]
    workers = os.cpu_count() or 1
    pools: dict[str, list[dict[str, Any]]] = {pool: [] for pool in POOLS}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as runner:
        futures = [(pool, runner.submit(_draw, pool, skill, n, seed)) for pool, skill, n in jobs]
        for pool, future in futures:
            pools[pool] += future.result()
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wt", encoding="utf-8") as file:
        json.dump(pools, file)
    for pool, found in pools.items():
        sizes = {s: sum(e["skill"] == s for e in found) for s in SKILLS}
        print(pool, len(found), sizes)


def tasks_of(pools: dict[str, Any], name: str) -> list[Any]:
    """A pool as tasks; `id` is the template, so that wordings can be told apart."""
    from engine.types import Message
    from trainer.data.task import Task

    return [
        Task(e["template"], (Message("user", e["prompt"]),), e["answer"], e["skill"], e["check"])
        for e in pools[name]
    ]


def measure(learner: Any, tasks: Sequence[Any], threshold: float) -> dict[str, list[Any]]:
    """Figures of every prompt: verified, tokens, forwards, blocks, commits."""
    from engine.types import DecodeSettings

    settings = DecodeSettings(threshold=threshold)
    replies = learner.evaluate(tasks, settings)
    texts = [learner.text(reply) for reply in replies]
    verdicts = learner.verifier.check_many(tasks, texts)
    return {
        "ok": [int(v.ok) for v in verdicts],
        "tokens": [len(r.ids) for r in replies],
        "forwards": [r.forwards for r in replies],
        "blocks": [r.blocks for r in replies],
        "commits": [r.commits for r in replies],
        "skill": [task.skill for task in tasks],
    }


def train_arm(
    arm: str,
    seed: int,
    pools: dict[str, Any],
    updates: int,
    base: dict[str, Any],
    out: Path,
    device: str | None,
    keep: bool,
) -> None:
    """One arm and seed: trains, measures, writes `arm-seed.json`."""
    from trainer.orl.learner import Learner
    from trainer.orl.recipe import Recipe
    from trainer.verify.registry import make_verifier
    from trainer.verify.verifier_spec import VerifierSpec

    record_file = out / f"{arm}-{seed}.json"
    if record_file.exists():
        return
    began = time.monotonic()
    settings = {**base, **({} if arm == "start" else ARMS[arm])}
    recipe = replace(Recipe(), **settings)
    verifier = make_verifier(VerifierSpec("demo"))
    learner = Learner(DEMO, recipe, verifier, seed, max(1, updates), device)
    record: dict[str, Any] = {"arm": arm, "seed": seed, "recipe": asdict(recipe), "updates": []}
    record["seconds_load"] = time.monotonic() - began
    train = tasks_of(pools, "own_train")
    rng = random.Random(seed)
    by_skill: dict[str, list[Any]] = {}
    for task in train:
        by_skill.setdefault(task.skill, []).append(task)
    need = recipe.rollouts // recipe.group
    names = sorted(by_skill)
    replayed: list[Any] = []
    if arm != "start":
        known = tasks_of(pools, "known_train")
        replayed = learner.own_answers(known, learner.student.spec.defaults)
        record["replayed"] = len(replayed)
    for update in range(0 if arm == "start" else updates):
        teaching = update < recipe.teach
        count = recipe.rollouts if teaching else need
        again = count // REPLAY
        chosen = [rng.choice(by_skill[names[n % len(names)]]) for n in range(count - again)]
        chosen += [rng.choice(replayed) for _ in range(again)]
        figures = learner.teach(chosen) if teaching else learner.update(chosen)
        record["updates"].append({k: round(v, 6) for k, v in figures.items()})
        if update == recipe.teach - 1:
            record["taught"] = {
                f"{pool}@0.95": measure(learner, tasks_of(pools, pool), 0.95)
                for pool in ("own_heldout", "known_heldout")
            }
            print(f"taught {arm} {seed} " + summary({"measured": record["taught"]}), flush=True)
        if update % 10 == 9 or update < 2:
            f = {"accuracy": 0.0, "tpf": 0.0, "share_of_ceiling": 0.0, **figures}
            print(
                f"[{time.monotonic() - began:5.1f}] {arm} {seed} {update + 1:3d} "
                f"acc {f['accuracy']:.3f} tpf {f['tpf']:.2f} of {f['share_of_ceiling']:.2f} "
                f"loss {f['loss']:.4f} kl {f.get('kl', 0):.4f} aec {f.get('aec', 0):.4f} "
                f"norm {f['grad_norm']:.3f} roll {f['seconds_rollout']:.2f} "
                f"learn {f['seconds_update']:.2f} refs {f['references']:.0f}",
                flush=True,
            )
    record["seconds_trained"] = time.monotonic() - began
    record["measured"] = {}
    plan = [(p, t) for t in (0.95, 0.5) for p in ("own_heldout", "known_heldout")]
    sweep = [("own_valid", t) for t in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)]
    for pool, threshold in plan + sweep:
        record["measured"][f"{pool}@{threshold:g}"] = measure(
            learner, tasks_of(pools, pool), threshold
        )
    record["seconds"] = time.monotonic() - began
    out.mkdir(parents=True, exist_ok=True)
    part = record_file.with_suffix(".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(record_file)
    print(f"[{time.monotonic() - began:5.1f}] {arm} {seed} " + summary(record), flush=True)
    if keep:
        _keep(learner, out)
    learner.close()


def _keep(learner: Any, out: Path) -> None:
    """The trained weights as bfloat16, for an export elsewhere."""
    import torch
    from safetensors.torch import save_file

    tensors = {n: t.to(torch.bfloat16).contiguous() for n, t in learner.trained_tensors().items()}
    shard: dict[str, Any] = {}
    size, number = 0, 0
    for name in sorted(tensors):
        bytes_ = tensors[name].numel() * 2
        if shard and size + bytes_ > 15 * 2**20:
            save_file(shard, out / f"weights-{number}.safetensors")
            shard, size, number = {}, 0, number + 1
        shard[name] = tensors[name].cpu()
        size += bytes_
    save_file(shard, out / f"weights-{number}.safetensors")


def figures_of(measured: dict[str, list[Any]]) -> dict[str, float]:
    """Accuracy (mean over skills), its weakest skill, TPF, forwards, share of the ceiling."""
    ok, skill = np.array(measured["ok"]), np.array(measured["skill"])
    tokens, forwards = np.array(measured["tokens"]), np.array(measured["forwards"])
    least = np.maximum(np.array(measured["blocks"]), 1) + np.array(measured["commits"])
    by_skill = {name: float(ok[skill == name].mean()) for name in sorted(set(skill))}
    return {
        "accuracy": float(np.mean(list(by_skill.values()))),
        "weakest": min(by_skill.values()),
        "tpf": float(tokens.sum() / forwards.sum()),
        "mean_tpf": float((tokens / forwards).mean()),
        "forwards": float(forwards.mean()),
        "tokens": float(tokens.mean()),
        "ceiling": float(tokens.sum() / least.sum()),
    }


def summary(record: dict[str, Any]) -> str:
    """One line."""
    parts = []
    for name, measured in record["measured"].items():
        f = figures_of(measured)
        parts.append(f"{name} {100 * f['accuracy']:.1f}/{f['tpf']:.2f}({f['forwards']:.2f})")
    return " ".join(parts)


def main() -> None:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("what", choices=("prompts", "train", "table"))
    p.add_argument("--prompts", type=Path, default=Path("runs/orl-prompts.json.gz"))
    p.add_argument("--arms", default="full,plain")
    p.add_argument("--seeds", default="1")
    p.add_argument("--updates", type=int, default=60)
    p.add_argument("--set", action="append", default=[], metavar="FIELD=JSON")
    p.add_argument("--max-seconds", type=float, help="begin no arm after this time")
    p.add_argument("--keep", metavar="ARM", help="keep this arm's weights, as bfloat16")
    p.add_argument("--device")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    if args.what == "prompts":
        make_prompts(args.out, 11)
        return
    if args.what == "table":
        for file in sorted(args.out.glob("*-*.json")):
            print(file.stem, summary(json.loads(file.read_text())))
        return
    began = time.monotonic()
    base: dict[str, Any] = {"trains": "all", "rollouts": 512, "group": 2}
    for item in args.set:
        name, _, value = item.partition("=")
        base[name] = json.loads(value)
    base = {k: tuple(v) if isinstance(v, list) else v for k, v in base.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.prompts, "rt", encoding="utf-8") as file:
        pools = json.load(file)
    for seed in map(int, args.seeds.split(",")):
        for arm in args.arms.split(","):
            if args.max_seconds is not None and time.monotonic() - began > args.max_seconds:
                print(f"out of time: {arm} {seed} is not run", flush=True)
                continue
            train_arm(arm, seed, pools, args.updates, base, args.out, args.device, args.keep == arm)


if __name__ == "__main__":
    main()
