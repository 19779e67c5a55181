"""What a finished copy is told by: errors per matrix and layer, sizes, time, memory; as data, as
JSON and as text.

Computes nothing but sums. The comparison of logits comes from outside (`engine.logit_distance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from engine.checkpoint.quantiser.state import ModuleError

REPORT = "nvfp4-report.json"


@dataclass(frozen=True)
class GroupError:
    """Relative error of several matrices together: sqrt of summed squares. name: a layer's number
    as text ("" = outside the layers), or a kind. matrices: how many."""

    name: str
    matrices: int
    relative_error: float


@dataclass(frozen=True)
class LogitDistance:
    """The copy's predictions against the original's, in the first step of an answer. KL(original ||
    copy) in nats over `positions`; same_best: share of them with the same best token. prompt: its
    text, or what stood for it. peak_bytes: largest resident memory up to here."""

    prompt: str
    positions: int
    mean_kl: float
    largest_kl: float
    same_best: float
    peak_bytes: int


@dataclass(frozen=True)
class QuantiseReport:
    """What was written. Bytes and seconds. modules: matrix -> relative error, the worst first.
    kinds, layers: the same in groups, the worst first. left: reason -> matrices that stay. resumed:
    units that an earlier process had done. peak_bytes: largest resident memory of the process while
    it wrote. logits: None where they were not compared, and why then in `not_compared`."""

    layout: str
    choice: str
    family: str
    modules: Mapping[str, float]
    kinds: tuple[GroupError, ...]
    layers: tuple[GroupError, ...]
    relative_error: float
    left: Mapping[str, int]
    source_bytes: int
    written_bytes: int
    peak_bytes: int
    seconds: float = 0.0
    resumed: int = 0
    copied: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    logits: LogitDistance | None = None
    not_compared: str = "not asked for"

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def group_errors(
    errors: Iterable[ModuleError], name_of: Mapping[str, str]
) -> tuple[GroupError, ...]:
    """Errors by group, the worst first. name_of: module -> its group."""
    groups: dict[str, list[ModuleError]] = {}
    for error in errors:
        groups.setdefault(name_of[error.module], []).append(error)
    found = [GroupError(name, len(group), together(group)) for name, group in groups.items()]
    return tuple(sorted(found, key=lambda group: -group.relative_error))


def together(errors: Sequence[ModuleError]) -> float:
    """Relative error of several matrices taken as one."""
    weight = sum(error.weight_square for error in errors)
    return (sum(error.error_square for error in errors) / weight) ** 0.5 if weight else 0.0
