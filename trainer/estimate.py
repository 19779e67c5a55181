"""What a run will take on this machine, from a few updates of it: time an update, peak memory.

Knows how they are measured and what follows for the whole run. Guesses nothing: without the trial
there are no figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from trainer.spec import TrainSpec
from trainer.start import make_learner, prepare

TRIAL = 2  # measured updates of a kind, after one that warms up


@dataclass(frozen=True)
class Estimate:
    """Seconds to load, of an update that teaches (0 when none does), of an ORL update, and of one
    measurement on validation tasks; bytes at the peak: of the GPU, or of this process where there
    is none; bytes of one checkpoint. total: seconds of the whole run."""

    device: str
    load: float
    teach: float
    update: float
    validation: float
    peak_bytes: int
    checkpoint_bytes: int
    total: float


def estimate(spec: TrainSpec) -> Estimate:
    """Loads the model and takes a few updates on it; nothing is kept. Raises UnblurError as a run
    would."""
    began = time.perf_counter()
    tasks, _ = prepare(spec)
    learner = make_learner(spec)
    load = time.perf_counter() - began
    recipe, guard = spec.recipe, spec.guard
    count = max(1, recipe.rollouts // recipe.group)
    pool = list(tasks.train)
    chosen = [pool[n % len(pool)] for n in range(recipe.rollouts)]
    teach = 0.0
    if recipe.teach:
        teach = _median([_timed(lambda: learner.teach(chosen)) for _ in range(TRIAL + 1)])
    update = _median([_timed(lambda: learner.update(chosen[:count])) for _ in range(TRIAL + 1)])
    valid = list(tasks.valid)[: guard.tasks]
    validation = _timed(lambda: learner.measure(valid, learner.settings)) if valid else 0.0
    state = learner.state_dict()
    measured = spec.updates // guard.every + 1
    rest = spec.updates - recipe.teach
    return Estimate(
        device=str(learner.student.device),
        load=load,
        teach=teach,
        update=update,
        validation=validation,
        peak_bytes=_peak(learner.student.device),
        checkpoint_bytes=sum(tensor.nbytes for tensor in state.values()),
        total=load + recipe.teach * teach + rest * update + measured * validation,
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _median(seconds: list[float]) -> float:
    """Of all but the first, which warms up."""
    rest = sorted(seconds[1:])
    return rest[len(rest) // 2]


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    info = psutil.Process().memory_info()
    return int(getattr(info, "peak_wset", 0) or _peak_of_linux() or info.rss)


def _peak_of_linux() -> int:
    """The highest resident size of this process, 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
