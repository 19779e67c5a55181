"""The table of model states allows what the app does, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.models.lifecycle import TRANSITIONS, ForbiddenTransition, Lifecycle, checked

S = Lifecycle


def test_every_state_has_a_row_and_a_way_out() -> None:
    assert set(TRANSITIONS) == set(Lifecycle)
    assert all(TRANSITIONS.values())


@pytest.mark.parametrize(
    "way",
    [
        (S.NO_MODEL, S.LOADING, S.READY, S.GENERATING, S.READY, S.UNLOADING, S.NO_MODEL),
        (S.NO_MODEL, S.LOADING, S.STOPPING, S.NO_MODEL),
        (S.READY, S.GENERATING, S.STOPPING, S.READY, S.LOADING),
        (S.LOADING, S.FAILED, S.LOADING, S.READY),
        (S.GENERATING, S.FAILED, S.UNLOADING, S.NO_MODEL),
    ],
)
def test_what_a_person_does_is_allowed(way: tuple[Lifecycle, ...]) -> None:
    for now, then in pairwise(way):
        assert checked(now, then) is then


@pytest.mark.parametrize(
    ("now", "then"),
    [
        (S.NO_MODEL, S.READY),
        (S.NO_MODEL, S.GENERATING),
        (S.LOADING, S.GENERATING),
        (S.GENERATING, S.LOADING),
        (S.GENERATING, S.UNLOADING),
        (S.UNLOADING, S.READY),
        (S.FAILED, S.GENERATING),
        (S.STOPPING, S.GENERATING),
    ],
)
def test_what_must_not_happen_is_refused(now: Lifecycle, then: Lifecycle) -> None:
    with pytest.raises(ForbiddenTransition, match=f"{now.name} -> {then.name}"):
        checked(now, then)


def test_no_state_leads_to_itself() -> None:
    assert all(state not in TRANSITIONS[state] for state in Lifecycle)
