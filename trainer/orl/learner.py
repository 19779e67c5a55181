"""One ORL update: a fresh rollout, verdicts, replay of what was seen, one step; then it is thrown
away.

Knows the order of these and the numbers they give. Where runs, files and schedules are kept is
`trainer.loop`'s business; each part's maths is in a module of its own beside this one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import RuntimeFailure
from engine.types import DecodeSettings
from trainer.data.task import Task
from trainer.orl.collect import Collected, collect, references_alone, rollout_figures
from trainer.orl.packing import pack
from trainer.orl.peers import ALONE, Peers, put_together, share
from trainer.orl.recipe import Recipe
from trainer.orl.replay import Replay
from trainer.orl.rollout import Reply, Roller, drawn_settings
from trainer.orl.states import Recorded
from trainer.orl.student import RESIDUAL, Student
from trainer.verify.registry import Verifier

SLOTS = 320  # turns of a rollout whose states are kept


class Learner:
    """seed: of everything drawn. updates: of the whole run, for the learning rate's schedule.
    peers: the processes that share the work of every call; all are called alike."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        verifier: Verifier,
        seed: int,
        updates: int,
        device: str | None = None,
        peers: Peers = ALONE,
    ) -> None:
        self.recipe, self.verifier = recipe, verifier
        self.seed, self.updates, self.peers = seed, updates, peers
        self.student = Student(folder, recipe, device, seed)
        self.done = 0
        self.micro_blocks = recipe.micro_blocks
        self._roller: Roller | None = None
        self._replay = Replay(self.student, recipe)
        self._kept: Collected | None = None
        self._still: set[str] = set(self.student.trained.slots)
        self._carried = 0  # updates in which some state had consumed a residual

    @property
    def micro_batch(self) -> int:
        """Blocks of one forward of training; halved when memory runs out."""
        return self.micro_blocks

    @micro_batch.setter
    def micro_batch(self, blocks: int) -> None:
        self.micro_blocks = max(blocks, self.recipe.window)

    def update(self, tasks: Sequence[Task]) -> dict[str, float]:
        """One update from `tasks` (as many as fill the rollouts are used, from the first). Figures
        of the rollout and of each loss. Raises RuntimeFailure `train.nonfinite` (nothing was
        changed) and `train.no_gradient`."""
        began = time.perf_counter()
        collected, figures = self._fresh(tasks)
        rolled = time.perf_counter()
        figures |= self._learn(collected)
        self.done += 1
        figures["seconds_rollout"] = rolled - began
        figures["seconds_update"] = time.perf_counter() - rolled
        return figures

    def teach(self, tasks: Sequence[Task]) -> dict[str, float]:
        """One update from reference answers alone, without a rollout: supervised block diffusion,
        the frozen model anchoring what it was sure of. Raises RequestError `train.no_reference`
        when no task has one that fits."""
        began = time.perf_counter()
        collected = references_alone(self.student, tasks, (self.seed, self.done), self.peers)
        self._kept = None
        figures = self._learn(collected, self.recipe.teach_rate)
        self.done += 1
        figures |= {**collected.figures, "seconds_rollout": 0.0}
        figures["seconds_update"] = time.perf_counter() - began
        return figures

    def _fresh(self, tasks: Sequence[Task]) -> tuple[Collected, dict[str, float]]:
        if self._kept is not None and self.done % self.recipe.keep_rollouts:
            return self._kept, dict(self._kept.figures)
        rng = np.random.default_rng((self.seed, self.done, 1))
        prompts = list(tasks)[: max(1, self.recipe.rollouts // self.recipe.group)]
        repeated = [task for task in prompts for _ in range(self.recipe.group)]
        parts: list[tuple[list[Reply], Recorded]] = []

        def work() -> None:
            parts.append(self._roll(repeated, rng))

        self.peers.together(work)
        replies, recorded = parts[0]
        collected = collect(
            self.student, self.recipe, self.verifier, repeated, replies, recorded, self.peers
        )
        self._kept = collected
        return collected, dict(collected.figures)

    def _roll(
        self, tasks: Sequence[Task], rng: np.random.Generator
    ) -> tuple[list[Reply], Recorded]:
        """Fresh replies to this process's share of the tasks, and their recorded states."""
        r = self.recipe
        settings = drawn_settings(
            self.student.spec.defaults, len(tasks), r.group, r.thresholds, r.temperature, rng
        )
        own = share(len(tasks), self.peers.rank, self.peers.size, r.group)
        prompts = [self.student.tokenizer.encode_chat(tasks[n].messages) for n in own]
        replies, recorded = self.roller.run(prompts, [settings[n] for n in own], r.max_new_tokens)
        assert recorded is not None
        return replies, recorded

    @property
    def roller(self) -> Roller:
        if self._roller is None:
            r, student = self.recipe, self.student
            capacity = r.window * student.spec.block_length
            kept = student.placement.kept_dtype
            rows = min(r.rows, r.rollouts)
            self._roller = Roller(student.model, rows, capacity, SLOTS, kept)
        return self._roller

    def _learn(self, collected: Collected, factor: float = 1.0) -> dict[str, float]:
        if not collected.totals[0]:
            return {"loss": 0.0, "grad_norm": 0.0, "updated": 0.0}
        student, recipe = self.student, self.recipe
        sums: dict[str, float] = {}
        parts = self.peers.together(lambda: self._gradients(collected))
        for name, value in (item for part in parts for item in part.items()):
            sums[name] = sums.get(name, 0.0) + value
        self._carried += sums.pop("carried") > 0
        if self.peers.size > 1:
            self.peers.add_up(student.trained.gradients())
        self._check_moving()
        norm = student.trained.step(factor * recipe.rate(self.done, self.updates))
        count = max(1.0, sums.pop("positions", 1.0))
        for name in ("gate_share", "entropy"):
            sums[name] = sums.get(name, 0.0) / count
        return {**sums, "grad_norm": norm, "updated": 1.0}

    def _gradients(self, collected: Collected) -> dict[str, float]:
        """Adds this process's share of the gradient up; its share of every figure."""
        student, recipe = self.student, self.recipe
        student.trained.drop_gradients()  # of an update that memory did not suffice for
        pieces = [piece for piece in collected.pieces if piece.states]
        windows = max(1, self.micro_blocks // recipe.window)
        length, mask_id = student.spec.block_length, student.spec.mask_token_id
        assert mask_id is not None
        forwards, lost = pack(pieces, recipe.window, windows, length, mask_id, collected.totals)
        sums: dict[str, float] = {"lost_states": float(lost)}
        for packed in forwards:
            for name, value in self._replay.gradient(packed, self.roller.tap).items():
                sums[name] = sums.get(name, 0.0) + value
        sums["carried"] = float(any(len(packed.source) for packed in forwards))
        return sums

    def _check_moving(self) -> None:
        """Every tensor that trains must get a gradient: at the first update, or, behind an output
        that begins at zero, at the second one that learns. The residual adapter's count begins
        with the first state that consumed a residual."""
        if not self._still:
            return
        trained = self.student.trained
        self._still &= set(trained.without_gradient())
        stuck = {name for name in self._still if not name.startswith(RESIDUAL)}
        if self._carried > 2:
            stuck = self._still
        if stuck and trained.steps >= 2:
            names = ", ".join(sorted(stuck)[:4])
            raise RuntimeFailure(
                "train.no_gradient",
                f"No gradient reaches {names} after {trained.steps} updates.",
                "Leave these modules out of what trains, or report this model.",
            )

    def own_answers(self, tasks: Sequence[Task], settings: DecodeSettings) -> list[Task]:
        """The tasks that the model, as it is now, answers rightly, with its answer as reference:
        what a run replays against forgetting."""
        replies = self.evaluate(tasks, settings)
        texts = [self.text(reply) for reply in replies]
        return [
            replace(task, reference=text)
            for task, text, ok in zip(tasks, texts, self._passed(tasks, texts), strict=True)
            if ok
        ]

    def _passed(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[bool]:
        """Which replies verify; every process judges its share."""
        own = share(len(tasks), self.peers.rank, self.peers.size)

        def work() -> list[bool]:
            verdicts = self.verifier.check_many([tasks[n] for n in own], [texts[n] for n in own])
            return [bool(verdict.ok) for verdict in verdicts]

        return put_together(self.peers.together(work))

    def evaluate(
        self, tasks: Sequence[Task], settings: DecodeSettings, max_new_tokens: int | None = None
    ) -> list[Reply]:
        """Replies to tasks in order, as the model is now."""
        self._kept = None  # its states are overwritten
        limit = max_new_tokens or self.recipe.max_new_tokens
        own = share(len(tasks), self.peers.rank, self.peers.size)

        def work() -> list[Reply]:
            prompts = [self.student.tokenizer.encode_chat(tasks[n].messages) for n in own]
            return self.roller.run(prompts, [settings] * len(own), limit, record=False)[0]

        return put_together(self.peers.together(work))

    def measure(self, tasks: Sequence[Task], settings: DecodeSettings) -> dict[str, Any]:
        """Figures of the model as it is now on tasks, and two samples: accuracy, tpf,
        share_of_ceiling, forwards, tokens."""
        replies = self.evaluate(tasks, settings)
        texts = [self.text(reply) for reply in replies]
        passed = self._passed(tasks, texts)
        wanted = ("accuracy", "tpf", "share_of_ceiling", "forwards", "tokens")
        figures = rollout_figures(replies, passed)
        samples = [
            {"prompt": task.messages[-1].content, "reply": text, "passed": ok}
            for task, text, ok in list(zip(tasks, texts, passed, strict=True))[:2]
        ]
        return {**{name: figures[name] for name in wanted}, "samples": samples}

    @property
    def settings(self) -> DecodeSettings:
        """What measurements decode with: the checkpoint's own defaults."""
        return self.student.spec.defaults

    @property
    def least_micro_batch(self) -> int:
        """Blocks of the smallest forward: one window."""
        return self.recipe.window

    def text(self, reply: Reply) -> str:
        """A reply's text without stop tokens."""
        return self.student.text(reply.ids)

    def trained_tensors(self) -> dict[str, Tensor]:
        """float32 masters by name, not copies."""
        return self.student.trained.masters()

    def state_dict(self) -> dict[str, Tensor]:
        """What an exact continuation needs, not copies. All draws follow from (seed, update)."""
        return {**self.student.trained.state(), "done": torch.tensor(self.done)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over `state_dict()`. Raises RuntimeFailure `train.other_run`."""
        rest = dict(state)
        done = int(rest.pop("done", torch.tensor(0)))
        self.student.trained.load(rest)
        self.done = done
        self._kept = None
        self._still = set() if self.student.trained.steps >= 2 else self._still

    def close(self) -> None:
        """Gives the rollout's captured memory back."""
        if self._roller is not None:
            self._roller.close()
            self._roller = None
