"""What the tests of the Models page share: a page on a test hub, and models on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hub_server import Blob
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton
from pytestqt.qtbot import QtBot
from services import services_in
from transfers import QUICK

from app.backend.library.scan import LocalModel
from app.desktop import Desktop
from app.models.model_states import Opening, Scanning
from app.models.model_store import ModelStore
from app.ui.find_card import FindCardView
from app.ui.library_card import LibraryCard
from app.ui.models_page import ModelsPage

OpenPage = Callable[..., Desktop]


def tiny_files(fixtures: Path) -> dict[str, Blob]:
    """A whole LLaDA2 model of half a megabyte, in bfloat16."""
    return {
        path.name: Blob(path.read_bytes(), lfs=path.suffix == ".safetensors")
        for path in (fixtures / "llada2-tiny").iterdir()
        if path.is_file()
    }


def page_of(desktop: Desktop) -> ModelsPage:
    return desktop.window.models_page


def open_page(
    open_window: Callable[..., Desktop],
    qtbot: QtBot,
    data: Path,
    endpoint: str | None = None,
    section: str = "library",
    **more: object,
) -> Desktop:
    """A window that shows the Models page, its folders looked at."""
    given = {} if endpoint is None else {"endpoint": endpoint}
    store = ModelStore(services_in(data, policy=QUICK, **given), **more)  # pyright: ignore[reportArgumentType]
    desktop = open_window(models=store, loaded=False)
    desktop.window.rail.choose("models")
    page_of(desktop).choose(section)
    qtbot.waitUntil(lambda: store.state is Opening.OPEN)
    qtbot.waitUntil(lambda: store.library.state is Scanning.SHOWN)
    return desktop


def press(qtbot: QtBot, button: QAbstractButton) -> None:
    """A click, once the button can be clicked."""
    qtbot.waitUntil(lambda: button.isVisible() and button.isEnabled())
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def settled(qtbot: QtBot, desktop: Desktop) -> None:
    """Waits until nobody looks at folders any more."""
    library = desktop.models.library
    qtbot.waitUntil(lambda: library.state is Scanning.SHOWN and not library._again)


def models(desktop: Desktop) -> tuple[LocalModel, ...]:
    return desktop.models.library.shelf.view.models


def library_card(desktop: Desktop, qtbot: QtBot, name: str) -> LibraryCard:
    section = page_of(desktop).library_section

    def found() -> LibraryCard | None:
        path = next((model.path for model in models(desktop) if model.name == name), None)
        return section.card_of(path) if path is not None else None

    qtbot.waitUntil(lambda: found() is not None)
    card = found()
    assert card is not None
    return card


def find_card(desktop: Desktop, qtbot: QtBot, key: str) -> FindCardView:
    cards = page_of(desktop).find_section.cards
    qtbot.waitUntil(lambda: key in cards.cards)
    return cards.cards[key]
