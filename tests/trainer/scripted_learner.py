"""A learner without a model: every number follows from what it was told, exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.types import DecodeSettings
from trainer.data.task import Task


class ScriptedLearner:
    """weights move by the tasks' names; accuracy and TPF are functions of `done` the test gives."""

    def __init__(
        self,
        accuracy: Callable[[int], float] = lambda done: 0.5,
        tpf: Callable[[int], float] = lambda done: 2.0,
        pause: float = 0.0,
    ) -> None:
        self.done = 0
        self.micro_batch = 8
        self.least_micro_batch = 2
        self.settings = DecodeSettings()
        self.weights = torch.zeros(4, dtype=torch.float64)
        self.fail: list[BaseException] = []
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self._accuracy, self._tpf, self._pause = accuracy, tpf, pause

    def update(self, tasks: Sequence[Task]) -> dict[str, float]:
        return self._move("update", tasks)

    def teach(self, tasks: Sequence[Task]) -> dict[str, float]:
        return self._move("teach", tasks)

    def _move(self, kind: str, tasks: Sequence[Task]) -> dict[str, float]:
        if self.fail:
            raise self.fail.pop(0)
        time.sleep(self._pause)
        for n, task in enumerate(tasks):
            value = sum(task.id.encode()) + n
            self.weights = self.weights * 0.97 + torch.tensor([1.0, 2.0, 3.0, 4.0]) * value
        self.calls.append((kind, tuple(task.id for task in tasks)))
        self.done += 1
        return {"loss": float(self.weights.sum()), "accuracy": self._accuracy(self.done)}

    def own_answers(self, tasks: Sequence[Task], settings: DecodeSettings) -> list[Task]:
        return list(tasks)[:2]

    def measure(self, tasks: Sequence[Task], settings: DecodeSettings) -> dict[str, Any]:
        return {
            "accuracy": self._accuracy(self.done),
            "tpf": self._tpf(self.done),
            "share_of_ceiling": 0.5,
            "forwards": 4.0,
            "tokens": 8.0,
            "samples": [],
        }

    def state_dict(self) -> dict[str, Tensor]:
        return {"weights": self.weights, "done": torch.tensor(self.done)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.weights, self.done = state["weights"].clone(), int(state["done"])
