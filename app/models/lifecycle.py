"""The states a model can be in, and the only moves between them.

It knows names and a table, and checks any other table of moves in the same way
(`app.models.model_states`). It refuses to know what makes a move happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)


class Lifecycle(Enum):
    NO_MODEL = "No model"
    LOADING = "Loading"
    READY = "Ready"
    GENERATING = "Answering"
    STOPPING = "Stopping"
    UNLOADING = "Unloading"
    FAILED = "Failed"


_S = Lifecycle
TRANSITIONS: Mapping[Lifecycle, frozenset[Lifecycle]] = {
    _S.NO_MODEL: frozenset({_S.LOADING}),
    _S.LOADING: frozenset({_S.READY, _S.FAILED, _S.STOPPING}),
    _S.READY: frozenset({_S.GENERATING, _S.LOADING, _S.UNLOADING}),
    # a refused request or a failed step leaves the engine usable; only an unexpected error does not
    _S.GENERATING: frozenset({_S.READY, _S.STOPPING, _S.FAILED}),
    # from a stopped load: NO_MODEL; from a stopped answer: READY; either may fail instead
    _S.STOPPING: frozenset({_S.READY, _S.NO_MODEL, _S.FAILED}),
    _S.UNLOADING: frozenset({_S.NO_MODEL, _S.FAILED}),
    _S.FAILED: frozenset({_S.LOADING, _S.UNLOADING}),
}


class ForbiddenTransition(RuntimeError):
    """A move that is not in the table: a defect in the app, never a person's doing."""


def checked(now: Lifecycle, then: Lifecycle) -> Lifecycle:
    """`then`, if the table allows it after `now`. Raises ForbiddenTransition."""
    return checked_move(TRANSITIONS, now, then)


def checked_move(table: Mapping[State, frozenset[State]], now: State, then: State) -> State:
    """`then`, if `table` allows it after `now`. Raises ForbiddenTransition."""
    if then not in table[now]:
        raise ForbiddenTransition(f"{now.name} -> {then.name} is not allowed")
    return then
