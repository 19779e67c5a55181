"""How good and how fast a model is on tasks: accuracy, TPF and forwards, by skill and over
thresholds, and one model against another on the same prompts.

Knows figures and their intervals. TPF is that of docs/how-it-works.md; an interval is a bootstrap
over prompts, paired where two models answered the same ones. Knows no files but what it is given.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.task import Task
from trainer.orl.learner import Learner
from trainer.orl.recipe import Recipe
from trainer.verify.registry import Verifier

RESAMPLES = 2000
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model did with N tasks at one threshold, float64 [N] each: verified 0 or 1, tokens,
    forwards, commits (forwards that only committed), blocks. seconds: wall time of all of them,
    side by side. texts: the replies."""

    model: str
    threshold: float
    verified: Reals
    tokens: Reals
    forwards: Reals
    commits: Reals
    blocks: Reals
    seconds: float
    skills: tuple[str, ...]
    texts: tuple[str, ...]

    def of(self, chosen: npt.NDArray[np.intp]) -> dict[str, float]:
        """Figures of some of the tasks."""
        tokens, forwards = self.tokens[chosen].sum(), self.forwards[chosen].sum()
        commits = self.commits[chosen].sum()
        least = np.maximum(self.blocks[chosen], 1).sum() + commits
        return {
            "tasks": float(len(chosen)),
            "accuracy": float(self.verified[chosen].mean()),
            "tpf": float(tokens / max(1.0, forwards)),
            "tpf_without_commits": float(tokens / max(1.0, forwards - commits)),
            "ceiling": float(tokens / max(1.0, least)),
            "forwards": float(forwards / len(chosen)),
            "steps_per_block": float((forwards - commits) / max(1.0, self.blocks[chosen].sum())),
            "tokens": float(tokens / len(chosen)),
        }

    @property
    def figures(self) -> dict[str, float]:
        """Of all tasks; tokens_per_second is of all replies side by side."""
        everything = self.of(np.arange(len(self.verified)))
        speed = float(self.tokens.sum() / max(1e-9, self.seconds))
        return {**everything, "tokens_per_second": speed}

    @property
    def by_skill(self) -> dict[str, dict[str, float]]:
        """Of every skill."""
        names = np.array(self.skills)
        return {name: self.of(np.flatnonzero(names == name)) for name in sorted(set(self.skills))}


class Evaluator:
    """A model folder, ready to answer. rows: replies side by side; window: blocks of the longest
    prompt and answer."""

    def __init__(
        self, folder: Path, verifier: Verifier, rows: int, window: int, device: str | None
    ) -> None:
        recipe = replace(Recipe(), rows=rows, rollouts=max(rows, 2), window=window, residual=False)
        self.name = folder.resolve().name
        self.learner = Learner(folder, recipe, verifier, 1, 1, device)

    def answer(self, tasks: Sequence[Task], threshold: float | None, most: int) -> Answers:
        """Replies to all tasks, greedily; threshold: None = the checkpoint's own."""
        learner = self.learner
        settings = learner.settings
        if threshold is not None:
            settings = replace(settings, threshold=threshold)
        began = time.perf_counter()
        replies = learner.evaluate(tasks, settings, most)
        seconds = time.perf_counter() - began
        texts = [learner.text(reply) for reply in replies]
        verdicts = learner.verifier.check_many(tasks, texts)

        def column(values: Sequence[float]) -> Reals:
            return np.array(values, dtype=np.float64)

        return Answers(
            self.name,
            settings.threshold,
            column([float(verdict.ok) for verdict in verdicts]),
            column([len(reply.ids) for reply in replies]),
            column([reply.forwards for reply in replies]),
            column([reply.commits for reply in replies]),
            column([reply.blocks for reply in replies]),
            seconds,
            tuple(task.skill for task in tasks),
            tuple(texts),
        )


def compared(base: Answers, tuned: Answers, seed: int = 0) -> dict[str, Any]:
    """Tuned against base on the same tasks: differences with 95 % bootstrap intervals, paired; the
    skills that got worse come first."""
    rng = np.random.default_rng(seed)
    count = len(base.verified)
    draws = rng.integers(0, count, (RESAMPLES, count))

    def interval(values: Reals) -> list[float]:
        return [float(np.quantile(values, q)) for q in (0.025, 0.975)]

    def tpf(answers: Answers) -> Reals:
        return answers.tokens[draws].sum(1) / np.maximum(answers.forwards[draws].sum(1), 1.0)

    points = (tuned.verified - base.verified)[draws].mean(1)
    changes = {
        skill: tuned.by_skill[skill]["accuracy"] - figures["accuracy"]
        for skill, figures in base.by_skill.items()
    }
    return {
        "accuracy_change": float((tuned.verified - base.verified).mean()),
        "accuracy_interval": interval(points),
        "tpf_ratio": tuned.figures["tpf"] / max(1e-9, base.figures["tpf"]),
        "tpf_ratio_interval": interval(tpf(tuned) / np.maximum(tpf(base), 1e-9)),
        "forwards_ratio": tuned.figures["forwards"] / max(1e-9, base.figures["forwards"]),
        "worse_skills": {k: v for k, v in sorted(changes.items(), key=lambda kv: kv[1]) if v < 0},
    }


def report(answers: Sequence[Answers]) -> dict[str, Any]:
    """Everything of several measurements, JSON-able, with the Pareto front of each model: the
    thresholds at which nothing else of it is both more right and faster."""
    found = [
        {"model": a.model, "threshold": a.threshold, **a.figures, "skills": a.by_skill}
        for a in answers
    ]
    return {"measured": found, "pareto": {m: _front(found, m) for m in {a.model for a in answers}}}


def _front(found: Sequence[Mapping[str, Any]], model: str) -> list[float]:
    mine = [row for row in found if row["model"] == model]
    return sorted(
        row["threshold"]
        for row in mine
        if not any(
            other["accuracy"] >= row["accuracy"]
            and other["tpf"] >= row["tpf"]
            and (other["accuracy"], other["tpf"]) != (row["accuracy"], row["tpf"])
            for other in mine
        )
    )
