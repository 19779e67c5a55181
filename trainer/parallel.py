"""One run on several processes: torchrun starts them, the first one leads, the others follow.

The leader runs the loop and owns the folder; what it asks of its learner, every process does on its
share (`trainer.orl.peers`). Gradients and messages go through torch.distributed. Knows no recipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import RuntimeFailure, UnblurError
from engine.types import DecodeSettings
from trainer.data.task import Task
from trainer.orl.learner import Learner
from trainer.orl.peers import ALONE, Peers
from trainer.spec import TrainSpec

T = TypeVar("T")
Make = Callable[[TrainSpec, Peers], Learner]
PATIENCE = timedelta(days=7)  # a paused run says nothing for as long as it is paused


class Group:
    """The processes that torchrun started."""

    def __init__(self) -> None:
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._words = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=PATIENCE))

    def together(self, work: Callable[[], T]) -> list[T]:
        """As `Peers.together`. Memory that runs out anywhere runs out everywhere."""
        value: T | None = None
        own: Exception | None = None
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - the others wait: they hear it, then it is raised
            own = error
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, (value, _told(own)), group=self._words)
        problems = [problem for _, problem in found if problem is not None]
        if any(problem[0] == "memory" for problem in problems):
            raise torch.OutOfMemoryError("one of the processes ran out of memory") from own
        if own is not None:
            raise own
        if problems:
            raise RuntimeFailure(*problems[0][1:])
        return [value for value, _ in found]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """As `Peers.add_up`."""
        for tensor in tensors:
            dist.all_reduce(tensor)

    def say(self, *words: Any) -> None:
        """The leader's words to all that `hear`."""
        dist.broadcast_object_list([words], src=0, group=self._words)

    def hear(self) -> tuple[Any, ...]:
        """What the leader said."""
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._words)
        return heard[0]

    def leave(self) -> None:
        dist.destroy_process_group()


def _told(error: Exception | None) -> tuple[str, ...] | None:
    """An error as words that travel."""
    if error is None:
        return None
    if isinstance(error, torch.OutOfMemoryError):
        return "memory", "", "", ""
    if isinstance(error, UnblurError):
        return "known", error.code, error.message, error.action
    text = f"A process failed ({type(error).__name__}: {error!s:.300})."
    return "unknown", "train.peer", text, "Resume the run; if it ends so again, report it."


def local_rank() -> int:
    """The number of this process on its machine, which is that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def on_all(lead: Callable[[Callable[[TrainSpec], Any]], str], make: Make) -> str:
    """Does `lead` here, or, under torchrun, in the first process while others follow. lead: gets
    what makes a learner of a spec, and returns how the run ended."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return lead(lambda spec: make(spec, ALONE))
    group = Group()
    try:
        if group.rank:
            follow(group, make)
            return "finished"
        try:
            return lead(lambda spec: Leader(spec, group, make))
        finally:
            group.say("end")
    finally:
        group.leave()


def load(spec: TrainSpec, group: Group, make: Make) -> Learner:
    """Every process's learner, on a GPU of its own."""
    if spec.device in (None, "cuda") and torch.cuda.is_available():
        spec = replace(spec, device=f"cuda:{local_rank()}")
    made: list[Learner] = []

    def work() -> None:
        made.append(make(spec, group))

    group.together(work)
    return made[0]


class Leader:
    """A learner that says to all processes what is asked of it, and takes its own share."""

    def __init__(self, spec: TrainSpec, group: Group, make: Make) -> None:
        group.say("load", spec)
        self._learner, self._group = load(spec, group, make), group

    def _all(self, name: str, *given: Any) -> Any:
        self._group.say(name, *given)
        return getattr(self._learner, name)(*given)

    @property
    def done(self) -> int:
        return self._learner.done

    @property
    def micro_batch(self) -> int:
        return self._learner.micro_batch

    @micro_batch.setter
    def micro_batch(self, blocks: int) -> None:
        self._group.say("micro_batch", blocks)
        self._learner.micro_batch = blocks

    @property
    def settings(self) -> DecodeSettings:
        return self._learner.settings

    @property
    def least_micro_batch(self) -> int:
        return self._learner.least_micro_batch

    def update(self, tasks: Sequence[Task]) -> dict[str, float]:
        return self._all("update", tasks)

    def teach(self, tasks: Sequence[Task]) -> dict[str, float]:
        return self._all("teach", tasks)

    def own_answers(self, tasks: Sequence[Task], settings: DecodeSettings) -> list[Task]:
        return self._all("own_answers", tasks, settings)

    def measure(self, tasks: Sequence[Task], settings: DecodeSettings) -> dict[str, Any]:
        return self._all("measure", tasks, settings)

    def state_dict(self) -> dict[str, Tensor]:
        """The leader's, which is everybody's."""
        return self._learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._all("load_state_dict", state)


def follow(group: Group, make: Make) -> None:
    """Does what the leader says until it says "end"."""
    learner: Learner | None = None
    while True:
        name, *given = group.hear()
        if name == "end":
            return
        try:
            if name == "load":
                learner = load(given[0], group, make)
            elif name == "micro_batch":
                assert learner is not None
                learner.micro_batch = given[0]
                torch.cuda.empty_cache()
            else:
                getattr(learner, name)(*given)
        except (UnblurError, torch.OutOfMemoryError):
            continue  # the leader met it, too, and decides what follows
