"""Finding models: the curated list, a search, a pasted name, and each looked at from afar.

It knows what a card says before and after a look, and that there may be no network: then the list
stays and `offline` says so. It refuses to know widgets and how anything is judged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.hub.access import HubError
from app.backend.hub.catalog import CatalogEntry, load_catalog
from app.backend.hub.client import HubModel
from app.backend.hub.ref import ModelRef, parse_ref
from app.backend.hub.support import Looked, Support, Supported
from app.backend.judge import (
    CONTEXTS,
    USUAL_CONTEXT,
    Judged,
    MachineReport,
    judge,
    look_at_machine,
)
from app.backend.model_services import ModelServices
from app.backend.transfer.queue import Problem
from app.backend.transfer.stop import Stop
from app.models.background import Background, Task, problem_of
from app.models.lifecycle import checked_move
from app.models.model_states import FINDING, LOOKING, Finding, Looking
from engine.errors import UnblurError

log = logging.getLogger("unblur.models")
OFFLINE = ("hub.unreachable", "hub.offline")
LOOKS_AT_ONCE = 2
RESULTS = 30

Judge = Callable[[ModelServices, ModelRef, Stop], Judged]
MachineLook = Callable[[ModelServices], MachineReport]


@dataclass(frozen=True)
class FindCard:
    """What is known of a model before it is looked at. key: unique on the page. ref: None for an
    entry that only has words to `search` for. Facts are None or "" where they are not known;
    unverified: those from second hand; source: where the list's facts come from. gated: None =
    not known."""

    key: str
    title: str
    ref: ModelRef | None
    support: Support
    search: str = ""
    family: str = ""
    about: str = ""
    quantisation: str = ""
    weight_bytes: int | None = None
    parameters: int | None = None
    context: int | None = None
    licence: str = ""
    gated: bool | None = None
    downloads: int | None = None
    updated: str = ""
    unverified: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Look:
    """What a look at a model has brought. text: the model card, None until it was asked for.
    text_problem: why it could not be had."""

    state: Looking = Looking.UNSEEN
    judged: Judged | None = None
    problem: Problem | None = None
    text: str | None = None
    text_problem: Problem | None = None


class FindModel(QObject):
    changed = Signal()  # the list, or what stands above it
    look_changed = Signal(str)  # a card's key
    machine_changed = Signal()
    context_changed = Signal()

    def __init__(
        self,
        judging: Judge = judge,
        machine_look: MachineLook = look_at_machine,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.state = Finding.CURATED
        self.words = ""
        self.problem: Problem | None  # of the last search, or of the list
        self.offline: Problem | None = None  # the hub does not answer
        self.machine: MachineReport | None = None
        self.measuring = False
        self.machine_problem: Problem | None = None
        self.context = USUAL_CONTEXT
        self._judge, self._machine_look = judging, machine_look
        self._services: ModelServices | None = None
        self._curated, self._list_problem = _curated()
        self.problem = self._list_problem
        self.cards = self._curated
        self._looks: dict[str, Look] = {}
        self._tasks: dict[str, Task] = {}
        self._search: Task | None = None
        self._searcher = Background("search", 1, self)
        self._looker = Background("look", LOOKS_AT_ONCE, self)
        self._reader = Background("model card", 1, self)
        self._measurer = Background("machine", 1, self)

    def attach(self, services: ModelServices) -> None:
        """From now on the hub can be asked. Nothing is asked yet."""
        self._services = services

    @property
    def endpoint(self) -> str:
        return self._services.hub.endpoint if self._services is not None else ""

    def look_of(self, key: str) -> Look:
        return self._looks.get(key, Look())

    def search(self, text: str) -> None:
        """Empty: the curated list. A name with a slash or a link: that model. Else: words."""
        services, words = self._services, text.strip()
        if services is None:
            return
        if self._search is not None:
            self._search.stop.set()
            self._search = None
        self.words, self.problem = words, None
        if not words:
            self.cards, self.problem = self._curated, self._list_problem
            if self.state is not Finding.CURATED:
                self._move(Finding.CURATED)
        elif "/" in words:
            self._name(words, services)
        else:
            self._move(Finding.SEARCHING)
            self._search = self._searcher.run(
                lambda _stop: services.hub.search(words, RESULTS), self._found, self._not_found
            )

    @Slot()
    def retry(self) -> None:
        """Forgets that there was no network, and does again what failed for it."""
        self.offline = None
        if self.state is Finding.FAILED:
            self.search(self.words)
        else:
            self.changed.emit()

    @Slot()
    def forget_refusals(self) -> None:
        """Another token is in force: what failed may be looked at again."""
        for key, look in list(self._looks.items()):
            if look.state is Looking.FAILED:
                del self._looks[key]
                self.look_changed.emit(key)
        self.changed.emit()

    def look(self, card: FindCard) -> None:
        """Looks at a model from afar, once; again after a failure. Not while offline: `retry`."""
        services, ref = self._services, card.ref
        before = self.look_of(card.key)
        if services is None or ref is None or self.offline is not None:
            return
        if before.state in (Looking.LOOKING, Looking.KNOWN):
            return
        key = card.key
        self._put(key, Looking.LOOKING)
        self._tasks[key] = self._looker.run(
            lambda stop: self._judge(services, ref, stop),
            lambda judged: self._known(key, judged),
            lambda problem: self._refused(key, problem),
            lambda: self._put(key, Looking.UNSEEN),
        )

    def call_off(self, keys: set[str]) -> None:
        """Ends looks that were not begun or finished, e.g. of cards that are no longer in sight."""
        for key in keys & set(self._tasks):
            if self.look_of(key).state is Looking.LOOKING:
                self._tasks[key].stop.set()

    def read_card(self, key: str) -> None:
        """Fetches a model's own card as text, for a model that is KNOWN."""
        services, look = self._services, self.look_of(key)
        if services is None or look.judged is None or look.text is not None:
            return
        listing = look.judged.listing

        def told(text: str | None, problem: Problem | None) -> None:
            now = self.look_of(key)
            if now.state is Looking.KNOWN:
                self._looks[key] = Look(now.state, now.judged, None, text, problem)
                self.look_changed.emit(key)

        self._reader.run(
            lambda stop: services.hub.card_text(listing, stop),
            lambda text: told(text, None),
            lambda problem: told(None, problem),
        )

    def choose_context(self, context: int) -> None:
        """One of `CONTEXTS`: what memory is reckoned for."""
        if context in CONTEXTS and context != self.context:
            self.context = context
            self.context_changed.emit()

    def look_at_machine(self) -> None:
        """What is free now. Imports torch on its thread."""
        services = self._services
        if services is not None:
            self._machine(lambda: self._machine_look(services))

    def measure(self) -> None:
        """Measures the memory's speed, about a second. What was judged is judged anew."""
        services = self._services
        if services is None or self.measuring:
            return

        def work() -> MachineReport:
            from app.backend.hub.bandwidth import keep, measure

            machine = self._machine_look(services).machine
            try:
                speed = measure(machine.device)
            except (RuntimeError, MemoryError) as error:  # torch's own for too little room
                log.warning("the memory could not be measured: %s", type(error).__name__)
                raise UnblurError(
                    "machine.not_measured",
                    f"The memory of {machine.device_name} could not be measured: there is too"
                    " little free.",
                    "Unload the model in use, then measure again.",
                ) from error
            keep(services.bandwidth_file, machine.device_name, speed)
            return self._machine_look(services)

        self._machine(work, self._judge_anew)

    @Slot()
    def look_again(self) -> None:
        """Judges anew: free memory is another one once a model was loaded or unloaded."""
        if not self.measuring:
            self.machine = self.machine_problem = None
            self._judge_anew()

    def close(self, until: float) -> bool:
        """See `Background.close`."""
        lanes = (self._searcher, self._looker, self._reader, self._measurer)
        ended = [lane.close(until) for lane in lanes]  # each of them, also after one that hangs
        return all(ended)

    def _name(self, words: str, services: ModelServices) -> None:
        try:
            ref = parse_ref(words, services.hub.endpoint)
        except HubError as error:
            self._not_found(problem_of(error))
            return
        known = next((card for card in self._curated if card.ref == ref), None)
        self.cards = (known or _card_of_ref(ref),)
        self._move(Finding.FOUND)

    def _found(self, models: tuple[HubModel, ...]) -> None:
        self.offline = None
        listed = {card.ref.repo_id: card for card in self._curated if card.ref is not None}
        self.cards = tuple(_card_of_model(model, listed.get(model.repo_id)) for model in models)
        self._move(Finding.FOUND)

    def _not_found(self, problem: Problem) -> None:
        self.cards = ()
        if problem.code in OFFLINE:
            self.offline, self.cards = problem, self._curated
        self.problem = problem
        self._move(Finding.FAILED)

    def _known(self, key: str, judged: Judged) -> None:
        self._put(key, Looking.KNOWN, judged)

    def _refused(self, key: str, problem: Problem) -> None:
        """Without a network no card is at fault: each is as it was, and the page says so once."""
        if problem.code not in OFFLINE:
            self._put(key, Looking.FAILED, problem=problem)
            return
        self._put(key, Looking.UNSEEN)
        if self.offline is None:
            self.offline = problem
            self.call_off(set(self._tasks))
            self.changed.emit()

    def _put(
        self,
        key: str,
        state: Looking,
        judged: Judged | None = None,
        problem: Problem | None = None,
    ) -> None:
        state = checked_move(LOOKING, self.look_of(key).state, state)
        self._looks[key] = Look(state, judged, problem)
        if state is not Looking.LOOKING:
            self._tasks.pop(key, None)
        self.look_changed.emit(key)

    def _move(self, state: Finding) -> None:
        self.state = checked_move(FINDING, self.state, state)
        self.changed.emit()

    def _machine(
        self, work: Callable[[], MachineReport], after: Callable[[], None] = lambda: None
    ) -> None:
        self.measuring = True
        self.machine_problem = None
        self.machine_changed.emit()

        def then(report: MachineReport) -> None:
            self.measuring, self.machine = False, report
            self.machine_changed.emit()
            after()

        def failed(problem: Problem) -> None:
            self.measuring, self.machine_problem = False, problem
            self.machine_changed.emit()

        self._measurer.run(lambda _stop: work(), then, failed)

    def _judge_anew(self) -> None:
        for key, look in list(self._looks.items()):
            if look.state is Looking.KNOWN:
                del self._looks[key]
                self.look_changed.emit(key)
        self.changed.emit()


def _curated() -> tuple[tuple[FindCard, ...], Problem | None]:
    try:
        return tuple(_card_of_entry(entry) for entry in load_catalog()), None
    except HubError as error:
        return (), problem_of(error)


def _card_of_entry(entry: CatalogEntry) -> FindCard:
    ref = ModelRef(entry.repo_id) if entry.repo_id else None
    return FindCard(
        key=_key(ref) if ref else f"search {entry.search}",
        title=entry.title,
        ref=ref,
        support=entry.support,
        search=entry.search,
        family=entry.family,
        about=entry.about,
        quantisation=entry.quantisation or "",
        weight_bytes=entry.weight_bytes,
        parameters=entry.parameters,
        context=entry.context,
        licence=entry.licence or "",
        unverified=entry.unverified,
        source=entry.source,
    )


def _card_of_model(model: HubModel, listed: FindCard | None) -> FindCard:
    """A search's result. The hub's own facts win over the list's."""
    ref = ModelRef(model.repo_id)
    return FindCard(
        key=_key(ref),
        title=model.repo_id,
        ref=ref,
        support=model.support,
        family=model.support.family,
        about=listed.about if listed else "",
        parameters=model.parameters,
        licence=model.licence,
        gated=model.gated,
        downloads=model.downloads,
        updated=model.updated,
    )


def _card_of_ref(ref: ModelRef) -> FindCard:
    title = ref.repo_id if ref.revision == "main" else f"{ref.repo_id}@{ref.revision}"
    support = Support(Supported.UNKNOWN, "It has not been looked at.", Looked.NOTHING)
    return FindCard(key=_key(ref), title=title, ref=ref, support=support)


def _key(ref: ModelRef) -> str:
    return f"{ref.repo_id}@{ref.revision}"
