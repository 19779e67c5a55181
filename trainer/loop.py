"""A run from its first update to its last: what is drawn, measured, saved, and when it stops.

Knows order, the control file, the guard and the checkpoints. What an update does is the learner's
business (`trainer.orl.learner`), files are `trainer.run_dir`'s. All draws follow from (seed,
update), so that a resumed run is the run that was not cut.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import RuntimeFailure, UnblurError
from engine.types import DecodeSettings
from trainer.data.split import held_out
from trainer.data.task import Task
from trainer.events import TrainEvent
from trainer.run_dir import Checkpoint, RunDir
from trainer.run_life import Heart, only_here
from trainer.spec import TrainSpec

PAUSED = 0.5  # seconds between looks at the control file while paused
NOISE = 0.01  # a lower accuracy within this is not worse: the faster one is then better

Report = Callable[[TrainEvent], None]


class LearnerLike(Protocol):
    """What the loop needs of a learner; see `trainer.orl.learner.Learner`."""

    done: int

    @property
    def micro_batch(self) -> int: ...

    @micro_batch.setter
    def micro_batch(self, blocks: int) -> None: ...

    @property
    def settings(self) -> DecodeSettings: ...

    @property
    def least_micro_batch(self) -> int: ...

    def update(self, tasks: Sequence[Task]) -> dict[str, float]: ...

    def teach(self, tasks: Sequence[Task]) -> dict[str, float]: ...

    def own_answers(self, tasks: Sequence[Task], settings: DecodeSettings) -> list[Task]: ...

    def measure(self, tasks: Sequence[Task], settings: DecodeSettings) -> dict[str, Any]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Tasks:
    """train and valid: apart. replay: what the start model answers rightly, None = not known
    yet."""

    train: Sequence[Task]
    valid: Sequence[Task]
    replay: Sequence[Task] | None = None


class Run:
    """One run over a folder. report: gets every event that is written."""

    def __init__(
        self, folder: RunDir, learner: LearnerLike, tasks: Tasks, report: Report | None = None
    ) -> None:
        self.folder, self.learner, self.tasks = folder, learner, tasks
        self.spec: TrainSpec = folder.spec
        self.report = report
        self.teaching = self.spec.recipe.teach > 0
        self.start: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self.replay: list[Task] = list(tasks.replay or ())
        self._heart = Heart(folder)
        self._ends: deque[float] = deque(maxlen=20)  # when the last updates were done
        self._saved = -1

    def go(self, resume: bool = False) -> str:
        """Runs to the end; returns how it ended ("finished", "stopped"). Raises UnblurError after
        having said and kept everything."""
        with only_here(self.folder), self._heart:
            return self._whole(resume)

    def _whole(self, resume: bool) -> str:
        self.folder.mend()
        self.folder.forget_asked()
        self._heart.says("running", self.learner.done)
        try:
            self._begin(resume)
            ended = self._updates()
            if self._saved != self.learner.done:
                self._save()
            self._state(ended, "It ran to its end." if ended == "finished" else "It was stopped.")
        except UnblurError as error:
            self._failed(error)
            raise
        except torch.OutOfMemoryError as error:
            failure = _no_memory()
            self._failed(failure)
            raise failure from error
        except KeyboardInterrupt:  # an update may be half done: what is saved stays as it was
            self._state("stopped", f"It was interrupted; update {max(0, self._saved)} is saved.")
            raise
        except Exception as error:
            self._failed(_unforeseen(error))
            raise
        return ended

    def _begin(self, resume: bool) -> None:
        self.folder.need_room(sum(item.nbytes for item in self.learner.state_dict().values()))
        if not self.tasks.valid:
            self._notice("Without validation examples nothing guards the accuracy of this run.")
        found = self._kept_state() if resume else None
        if found is None:
            self._state("running", "Measuring the start model.")
            self._measure_start()
            self._save()
            return
        checkpoint, tensors = found
        meta = checkpoint.meta
        self.learner.load_state_dict(tensors)
        self.start, self.best = meta["start"], meta["best"]
        self.teaching = bool(meta["teaching"])
        self.learner.micro_batch = int(meta["micro_batch"])
        self._saved = self.learner.done
        self._state("running", f"Resumed after update {self.learner.done}.")

    def _kept_state(self) -> tuple[Checkpoint, dict[str, Tensor]] | None:
        """The last checkpoint, or the best one where the last cannot be read, which is said; None
        where nothing was saved. Raises RuntimeFailure `run.damaged`."""
        try:
            checkpoint = self.folder.checkpoint("last")
            return None if checkpoint is None else (checkpoint, self.folder.tensors(checkpoint))
        except RuntimeFailure as error:
            checkpoint = self.folder.checkpoint("best")
            if checkpoint is None:
                raise
            tensors = self.folder.tensors(checkpoint)
            self._notice(f"{error.message} The run goes on from its best one instead.")
            return checkpoint, tensors

    def _measure_start(self) -> None:
        if self.tasks.valid:
            self.start = self._validate("The start model")
        wants = self.spec.data.replay > 0 and self.tasks.replay is None
        if wants:
            self.replay = self.learner.own_answers(self.tasks.train, self.learner.settings)
            self.folder.keep_replay(self.replay)
            self._notice(f"{len(self.replay)} of the start model's own answers are replayed.")

    def _updates(self) -> str:
        spec, learner = self.spec, self.learner
        while learner.done < spec.updates:
            if self._stop_asked():
                return "stopped"
            figures = self._one()
            self._say("metrics", {**figures, "teaching": self.teaching, **self._pace()})
            self._heart.moved(learner.done)
            last = learner.done == spec.updates
            if learner.done % spec.guard.every == 0 or last:
                self._check()
            elif self.teaching and learner.done >= spec.recipe.teach:
                self._stop_teaching(self._taught(None))
        return "finished"

    def _pace(self) -> dict[str, float]:
        """seconds_left, from the last updates of this process and what lay between them."""
        self._ends.append(time.monotonic())
        if len(self._ends) < 3:
            return {}
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return {"seconds_left": each * (self.spec.updates - self.learner.done)}

    def _one(self) -> dict[str, float]:
        """One update; memory that runs out halves the forward and tries again."""
        learner = self.learner
        while True:
            tasks = self._drawn()
            try:
                return learner.teach(tasks) if self.teaching else learner.update(tasks)
            except torch.OutOfMemoryError:
                if learner.micro_batch <= learner.least_micro_batch:
                    raise
                learner.micro_batch //= 2
                torch.cuda.empty_cache()
                self._notice(
                    "Memory ran out: an update's forward is halved to "
                    f"{learner.micro_batch} blocks, and the update is taken again."
                )

    def _drawn(self) -> list[Task]:
        """This update's tasks: every skill alike, then what is replayed."""
        spec, done = self.spec, self.learner.done
        rng = random.Random(f"{spec.seed}:{done}")
        recipe = spec.recipe
        count = recipe.rollouts if self.teaching else max(1, recipe.rollouts // recipe.group)
        pool = list(self.tasks.train)
        if self.teaching:
            pool = [task for task in pool if task.reference] or pool
        again = int(count * spec.data.replay) if self.replay else 0
        by_skill: dict[str, list[Task]] = {}
        for task in pool:
            by_skill.setdefault(task.skill, []).append(task)
        names = sorted(by_skill)
        shift = rng.randrange(len(names))
        chosen = [
            rng.choice(by_skill[names[(n + shift) % len(names)]]) for n in range(count - again)
        ]
        return chosen + [rng.choice(self.replay) for _ in range(again)]

    def _check(self) -> None:
        """Measures, saves, and stops what goes wrong."""
        found = self._validate(f"After update {self.learner.done}") if self.tasks.valid else None
        better = found is None or self.best is None or _better(found, self.best)
        if better and found is not None:
            self.best = {**found, "update": self.learner.done}
        if self.teaching and (why := self._taught(found)):
            self._stop_teaching(why)
        self._save()
        if better:
            self.folder.name_best(self.learner.done)
        self._guard(found)

    def _taught(self, found: Mapping[str, Any] | None) -> str:
        """Why teaching is over, "" while it goes on."""
        recipe = self.spec.recipe
        if found is not None and found["accuracy"] >= recipe.teach_until:
            return f"{100 * found['accuracy']:.0f} % of the validation answers verify."
        if self.learner.done >= recipe.teach:
            return "The updates for teaching are done."
        return ""

    def _stop_teaching(self, why: str) -> None:
        self.teaching = False
        self._notice(f"{why} From here on the run makes the model faster (ORL).")

    def _guard(self, found: Mapping[str, Any] | None) -> None:
        """Raises RuntimeFailure `train.collapse` when answers got faster and wrong."""
        if found is None or self.start is None or self.teaching:
            return
        fell = self.start["accuracy"] - found["accuracy"]
        if fell > self.spec.guard.drop and found["tpf"] > self.start["tpf"]:
            raise RuntimeFailure(
                "train.collapse",
                f"Answers got faster and worse: {100 * found['accuracy']:.1f} % are right, "
                f"{100 * self.start['accuracy']:.1f} % were. The run was stopped, its best "
                "checkpoint is kept.",
                "Lower the learning rate, or give the guard more room, and start anew.",
            )

    def _validate(self, what: str) -> dict[str, Any]:
        tasks = list(self.tasks.valid)[: self.spec.guard.tasks]
        found = self.learner.measure(tasks, self.learner.settings)
        samples = found.pop("samples", [])
        self._say("validation", {**found, "what": what})
        for sample in samples:
            self._say("sample", sample)
        return found

    def _save(self) -> None:
        learner = self.learner
        meta = {
            "update": learner.done,
            "teaching": self.teaching,
            "start": self.start,
            "best": self.best,
            "micro_batch": learner.micro_batch,
        }
        self.folder.save(learner.done, learner.state_dict(), meta)
        self._saved = learner.done

    def _stop_asked(self) -> bool:
        """Follows the control file; True when the run is to end."""
        asked = self.folder.asked()
        if asked == "save":
            self._save()
            self._notice(f"Saved after update {self.learner.done}.")
        if asked == "pause":
            self._save()
            self._state("paused", "Paused; everything is saved.")
            while (asked := self.folder.asked()) == "pause":
                time.sleep(PAUSED)
            self._ends.clear()  # a pause is no pace
            if asked != "stop":
                self._state("running", "It goes on.")
        return asked == "stop"

    def _failed(self, error: UnblurError) -> None:
        """Says an error as far as the disk allows."""
        text = {"code": error.code, "text": error.message, "action": error.action}
        try:
            self._say("error", text)
            self._state("failed", f"{error.message} {error.action}")
        except UnblurError:  # the disk that is full is this one: whoever watches still hears it
            if self.report is not None:
                self.report(TrainEvent("error", self.learner.done, text))

    def _state(self, state: str, reason: str) -> None:
        self._say("state", {"state": state, "text": reason})
        self._heart.says(state, self.learner.done, reason)

    def _notice(self, text: str) -> None:
        self._say("notice", {"text": text})

    def _say(self, kind: Any, data: Mapping[str, Any]) -> None:
        event = TrainEvent(kind, self.learner.done, data)
        self.folder.append(event)
        if self.report is not None:
            self.report(event)


def _better(found: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Clearly more right, or as right and faster."""
    if found["accuracy"] > best["accuracy"] + NOISE:
        return True
    return found["accuracy"] >= best["accuracy"] - NOISE and found["tpf"] > best["tpf"]


def _no_memory() -> RuntimeFailure:
    return RuntimeFailure(
        "train.out_of_memory",
        "Memory ran out even with the smallest forward. The last checkpoint is kept.",
        "Close other programs, use fewer rows, a shorter window, or a smaller model.",
    )


def _unforeseen(error: Exception) -> RuntimeFailure:
    """What nothing here foresaw; the traceback goes to whoever started the run."""
    return RuntimeFailure(
        "train.unforeseen",
        f"The run met an error of the program ({type(error).__name__}: {error!s:.300}). What was "
        "saved is kept.",
        "Resume it; if it ends so again, report it with the run's events.jsonl.",
    )


def split_tasks(tasks: Sequence[Task], share: float, seed: int) -> Tasks:
    """Training and validation tasks, apart and the same for the same seed."""
    held = held_out(tasks, share, seed)
    return Tasks(
        [task for n, task in enumerate(tasks) if n not in held],
        [task for n, task in enumerate(tasks) if n in held],
    )


def with_replay(tasks: Tasks, replay: Sequence[Task]) -> Tasks:
    """The same tasks with the start model's own answers known."""
    return replace(tasks, replay=list(replay))
