"""The access token as the window sees it: whether one is kept, where, and for which account.

It knows states. It refuses to hold the token: what a person enters goes to the store and is not
kept here, so that nothing can show it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.hub.access import HubError
from app.backend.model_services import ModelServices
from app.backend.transfer.queue import Problem
from app.models.background import Background, problem_of
from app.models.lifecycle import checked_move
from app.models.model_states import KEEPING, Keeping


@dataclass(frozen=True)
class Kept:
    """where: the place's name, "" for no token. account: whose it is, "" where nobody was asked or
    could be. note: why it is not in the keyring, "" where there is nothing to say. problem: what
    the hub said of it, None where it was not asked or is content."""

    where: str = ""
    account: str = ""
    note: str = ""
    problem: Problem | None = None


class TokenModel(QObject):
    changed = Signal()
    usable = Signal()  # another token is in force: what was refused may be asked for again

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.state = Keeping.UNKNOWN
        self.kept = Kept()
        self._services: ModelServices | None = None
        self._lane = Background("token", 1, self)

    def attach(self, services: ModelServices) -> None:
        """Finds out whether there is one, without asking the network."""
        self._services = services
        self._ask(_look, tell=False)

    def save(self, token: str) -> None:
        """Keeps a token and asks the hub whose it is."""
        self._ask(lambda services: _save(services, token), tell=True)

    @Slot()
    def forget(self) -> None:
        self._ask(_forget, tell=True)

    def close(self, until: float) -> bool:
        """See `Background.close`."""
        return self._lane.close(until)

    def _ask(self, work: Callable[[ModelServices], Kept], tell: bool) -> None:
        services = self._services
        if services is None or self.state is Keeping.ASKING:
            return
        self._move(Keeping.ASKING)

        def then(kept: Kept) -> None:
            self.kept = kept
            self._move(
                Keeping.REFUSED if kept.problem else Keeping.KEPT if kept.where else Keeping.NONE
            )
            if tell:
                self.usable.emit()

        def failed(problem: Problem) -> None:
            then(Kept(where=self.kept.where, problem=problem))

        self._lane.run(lambda _stop: work(services), then, failed)

    def _move(self, state: Keeping) -> None:
        self.state = checked_move(KEEPING, self.state, state)
        self.changed.emit()


def _look(services: ModelServices) -> Kept:
    services.tokens.get()
    return Kept(where=services.tokens.where, note=services.tokens.problem or "")


def _save(services: ModelServices, token: str) -> Kept:
    """Kept also where the hub cannot be asked: then nobody knows whose it is."""
    services.tokens.save(token)
    kept = _look(services)
    try:
        return replace(kept, account=services.hub.who())
    except HubError as error:
        return replace(kept, problem=problem_of(error))


def _forget(services: ModelServices) -> Kept:
    """What is left: a keyring that did not answer may still have it."""
    try:
        services.tokens.forget()
    except HubError as error:
        return replace(_look(services), problem=problem_of(error))
    return _look(services)
