"""The tables behind the Models page allow what happens there, and nothing else."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

import pytest

from app.models import model_states as tables
from app.models.lifecycle import ForbiddenTransition, checked_move
from app.models.model_states import Checking as C
from app.models.model_states import Copying as Q
from app.models.model_states import Finding as F
from app.models.model_states import Keeping as K
from app.models.model_states import Looking as L
from app.models.model_states import Opening as O
from app.models.model_states import Scanning as S

TABLES = {
    O: tables.OPENING,
    S: tables.SCANNING,
    C: tables.CHECKING,
    F: tables.FINDING,
    L: tables.LOOKING,
    Q: tables.COPYING,
    K: tables.KEEPING,
}


@pytest.mark.parametrize("states", TABLES, ids=lambda states: states.__name__)
def test_every_state_has_a_row_and_can_be_reached(states: type[Enum]) -> None:
    table = TABLES[states]
    assert set(table) == set(states)
    first = next(iter(states))
    reached, found = {first}, {first}
    while found:
        found = {then for now in found for then in table[now]} - reached
        reached |= found
    assert reached == set(states)


def test_only_the_end_has_no_way_out() -> None:
    ends = [state for table in TABLES.values() for state, ways in table.items() if not ways]
    assert ends == [O.ENDED]


@pytest.mark.parametrize(
    "way",
    [
        (O.CLOSED, O.OPENING, O.FAILED, O.OPENING, O.OPEN, O.ENDED),
        (S.NEW, S.SCANNING, S.SHOWN, S.SCANNING),
        (C.UNCHECKED, C.CHECKING, C.STOPPING, C.UNCHECKED),
        (C.UNCHECKED, C.CHECKING, C.STOPPING, C.CHECKED, C.CHECKING, C.FAILED, C.CHECKING),
        (F.CURATED, F.SEARCHING, F.SEARCHING, F.FAILED, F.SEARCHING, F.FOUND, F.CURATED),
        (L.UNSEEN, L.LOOKING, L.UNSEEN, L.LOOKING, L.FAILED, L.LOOKING, L.KNOWN),
        (Q.IDLE, Q.COPYING, Q.STOPPING, Q.IDLE, Q.COPYING, Q.DONE, Q.COPYING, Q.FAILED, Q.IDLE),
        (K.UNKNOWN, K.ASKING, K.NONE, K.ASKING, K.REFUSED, K.ASKING, K.KEPT),
    ],
)
def test_what_a_person_does_is_allowed(way: tuple[Enum, ...]) -> None:
    table = TABLES[type(way[0])]
    for now, then in pairwise(way):
        assert checked_move(table, now, then) is then


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (O.ENDED, O.OPENING),
        (O.CLOSED, O.OPEN),
        (S.SHOWN, S.NEW),
        (C.UNCHECKED, C.CHECKED),
        (C.CHECKING, C.UNCHECKED),
        (F.CURATED, F.CURATED),
        (L.UNSEEN, L.KNOWN),
        (Q.STOPPING, Q.COPYING),
        (Q.COPYING, Q.IDLE),
        (K.NONE, K.KEPT),
    ],
)
def test_what_must_not_happen_is_refused(now: Enum, then: Enum) -> None:
    with pytest.raises(ForbiddenTransition, match=f"{now.name} -> {then.name}"):
        checked_move(TABLES[type(now)], now, then)
