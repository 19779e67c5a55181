"""Find: searched, pasted, judged, got; without a token, without a licence, without a network."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import Blob, HubServer, Repository, Trouble
from models_page import find_card, library_card, open_page, page_of, press, settled, tiny_files
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot
from transfers import TOKEN, model_files

from app.backend.files import AppFolders
from app.backend.hub.fit import Verdict
from app.backend.judge import CONTEXTS
from app.desktop import Desktop
from app.models.model_states import Finding, Keeping, Looking
from app.ui.find_card import FindCardView

TINY, OTHER, GATED = "fix/LLaDA2.1-tiny", "fix/Qwen3-tiny", "fix/gated"
CARD = """---
license: apache-2.0
---
# A tiny model

![a picture](https://tracker.example/pixel.png) <img src="https://tracker.example/2.png">

[its report](https://example.org/report)
"""


@pytest.fixture(scope="module")
def files(shared_fixtures: Path) -> dict[str, Blob]:
    return {**tiny_files(shared_fixtures), "README.md": Blob(CARD.encode())}


@pytest.fixture
def hub(files: dict[str, Blob]) -> Iterator[HubServer]:
    wrong = {**model_files(3000), "config.json": Blob(b'{"model_type": "qwen3"}')}
    readers = {
        TOKEN: "accepted",
        "hf_newcomersToken": "new",
        "hf_declinedToken": "rejected",
    }
    with HubServer(
        Repository(TINY, files, config={"model_type": "llada2_moe"}),
        Repository(OTHER, wrong, config={"model_type": "qwen3"}),
        Repository(GATED, files, gated=True, readers=readers),
    ) as server:
        yield server


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were opened in a browser."""
    links: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: links.append(QUrl(url).toString()))
    return links


@pytest.fixture
def desktop(open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer) -> Iterator[Desktop]:
    made = open_page(open_window, qtbot, folders.data, hub.endpoint, "find")
    yield made
    settled(qtbot, made)


def ask_for(desktop: Desktop, qtbot: QtBot, text: str) -> None:
    edit = page_of(desktop).find_section.edit
    qtbot.waitUntil(edit.isEnabled)
    edit.setFocus()
    edit.selectAll()
    QTest.keyClicks(edit, text)
    QTest.keyClick(edit, Qt.Key.Key_Return)


def judged_card(desktop: Desktop, qtbot: QtBot, name: str) -> FindCardView:
    """Pastes a name and waits until its files were looked at."""
    ask_for(desktop, qtbot, name)
    view = find_card(desktop, qtbot, f"{name}@main")
    ended = (Looking.KNOWN, Looking.FAILED)
    find = desktop.models.find
    qtbot.waitUntil(lambda: find.look_of(view.card.key).state in ended, timeout=30_000)
    return view


def test_the_list_that_ships_is_shown_before_anything_is_asked(desktop: Desktop, qtbot) -> None:
    section = page_of(desktop).find_section
    qtbot.waitUntil(lambda: section.cards.complete and len(section.cards.cards) > 15)
    first = next(iter(section.cards.cards.values()))
    assert first.title.text() == "LLaDA2.1-mini"
    assert "16.0 B parameters" in first.facts.text()
    assert "Second hand" in first.facts.toolTip()


def test_a_pasted_link_is_judged_from_its_files_and_got(
    desktop: Desktop, qtbot: QtBot, hub: HubServer, folders: AppFolders
) -> None:
    ask_for(desktop, qtbot, f"{hub.endpoint}/{TINY}/tree/main")
    view = find_card(desktop, qtbot, f"{TINY}@main")
    qtbot.waitUntil(lambda: view.main.text().startswith("Get, "), timeout=30_000)
    assert (view.support.text(), view.fit.text()) == ("Supported", "Fits")
    assert view.fit_words.text().startswith("Fits: ")
    assert "Weights: " in view.fit_words.toolTip()
    assert "Cache: " in view.fit_words.toolTip()
    assert "version " in view.facts.text()
    assert "from its name" in view.facts.toolTip()
    press(qtbot, view.main)
    qtbot.waitUntil(lambda: view.main.text() == "Use", timeout=20_000)
    path = folders.data / "models" / "fix" / "LLaDA2.1-tiny"
    assert (path / "unblur-model.json").exists()
    page_of(desktop).choose("library")
    assert library_card(desktop, qtbot, TINY).path.text() == str(path)


def test_a_model_that_is_refused_says_why_and_can_be_got_anyway(
    desktop: Desktop, qtbot: QtBot
) -> None:
    view = judged_card(desktop, qtbot, OTHER)
    assert view.support.text() == "Refused"
    assert "not a diffusion language model" in view.reason.text()
    assert view.main.text().startswith("Get it anyway")
    assert view.main.property("kind") != "primary"
    press(qtbot, view.main)
    downloads = desktop.models.downloads
    qtbot.waitUntil(lambda: [v.repo_id for v in downloads.views] == [OTHER])
    qtbot.waitUntil(lambda: view.main.text() == "Use")


def test_the_context_that_is_reckoned_with_is_a_choice(desktop: Desktop, qtbot: QtBot) -> None:
    view = judged_card(desktop, qtbot, TINY)
    judged = desktop.models.find.look_of(view.card.key).judged
    assert judged is not None
    assert set(judged.fits) == set(CONTEXTS)
    before = view.fit.toolTip()
    section = page_of(desktop).find_section
    section.context.menu().actions()[0].trigger()
    assert section.context.text() == "For 1,024 tokens"
    assert judged.fits[1024].verdict is Verdict.FITS
    assert "1024 tokens" in view.fit.toolTip() or view.fit.toolTip() != before


def test_search_lists_what_the_hub_has_and_leads_back(desktop: Desktop, qtbot: QtBot) -> None:
    ask_for(desktop, qtbot, "tiny")
    section = page_of(desktop).find_section
    qtbot.waitUntil(lambda: set(section.cards.cards) == {f"{TINY}@main", f"{OTHER}@main"})
    assert section.cards.cards[f"{OTHER}@main"].support.text() == "Refused"
    ask_for(desktop, qtbot, "nothing-has-this-name")
    qtbot.waitUntil(lambda: section.note.text().startswith("The hub has no safetensors model"))
    press(qtbot, section.clear)
    qtbot.waitUntil(lambda: len(section.cards.cards) > 15 and section.cards.complete)
    assert section.edit.text() == ""
    assert not section.clear.isVisible()


def test_a_link_that_leads_elsewhere_is_refused_without_a_request(
    desktop: Desktop, qtbot: QtBot, hub: HubServer
) -> None:
    asked = len(hub.requests)
    ask_for(desktop, qtbot, "https://evil.example/fix/LLaDA2.1-tiny")
    section = page_of(desktop).find_section
    qtbot.waitUntil(section.problem.isVisible)
    assert section.problem.code.text() == "hub.other_site"
    assert not [r for r in hub.requests[asked:] if "evil" in r.path]


@pytest.mark.parametrize(
    ("token", "code", "button"),
    [
        (None, "hub.no_token", "Enter a token"),
        ("hf_newcomersToken", "hub.licence_not_accepted", "Open its page"),
        ("hf_declinedToken", "hub.access_denied", "Open its page"),
    ],
)
def test_a_gated_model_says_which_of_three_things_is_missing(
    desktop: Desktop,
    qtbot: QtBot,
    hub: HubServer,
    opened: list[str],
    token: str | None,
    code: str,
    button: str,
) -> None:
    if token is not None:
        qtbot.waitUntil(lambda: desktop.models.token.state is Keeping.NONE)
        desktop.models.token.save(token)
        qtbot.waitUntil(lambda: desktop.models.token.state is Keeping.KEPT)
    view = judged_card(desktop, qtbot, GATED)
    assert view.problem.isVisible()
    assert view.problem.code.text() == code
    assert view.problem.button.text() == button
    assert view.main.text() == "Try again"
    assert opened == []
    press(qtbot, view.problem.button)
    if token is None:
        assert page_of(desktop).find_section.token_card.edit.hasFocus()
    else:
        assert opened == [f"{hub.endpoint}/{GATED}"]


def test_once_the_licence_is_accepted_the_model_is_asked_for_again(
    desktop: Desktop, qtbot: QtBot, hub: HubServer
) -> None:
    qtbot.waitUntil(lambda: desktop.models.token.state is Keeping.NONE)
    desktop.models.token.save("hf_newcomersToken")
    qtbot.waitUntil(lambda: desktop.models.token.state is Keeping.KEPT)
    view = judged_card(desktop, qtbot, GATED)
    assert view.problem.code.text() == "hub.licence_not_accepted"
    hub.repositories[GATED].readers = {"hf_newcomersToken": "accepted"}
    press(qtbot, view.main)
    qtbot.waitUntil(lambda: view.main.text().startswith("Get, "), timeout=20_000)
    assert not view.problem.isVisible()


def test_a_token_is_kept_tried_and_never_shown_again(
    desktop: Desktop, qtbot: QtBot, folders: AppFolders, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        view = judged_card(desktop, qtbot, GATED)
        press(qtbot, view.problem.button)
        card = page_of(desktop).find_section.token_card
        assert card.edit.echoMode() is QLineEdit.EchoMode.Password
        assert not card.save.isEnabled()
        QTest.keyClicks(card.edit, TOKEN)
        press(qtbot, card.save)
        assert card.edit.text() == ""
        qtbot.waitUntil(lambda: "somebody" in card.state.text())
        qtbot.waitUntil(lambda: view.main.text().startswith("Get, "), timeout=20_000)
    assert TOKEN in (folders.data / "token.json").read_text("utf-8")
    assert TOKEN not in caplog.text
    assert TOKEN not in str([vars(desktop.models.token.kept), card.accessibleDescription()])
    press(qtbot, card.forget)
    qtbot.waitUntil(lambda: card.state.text() == "No token is kept.")


def test_what_cannot_be_a_token_is_refused_in_words(desktop: Desktop, qtbot: QtBot) -> None:
    section = page_of(desktop).find_section
    qtbot.waitUntil(lambda: desktop.models.token.state is Keeping.NONE)
    press(qtbot, section.token)
    QTest.keyClicks(section.token_card.edit, "two words")
    QTest.keyClick(section.token_card.edit, Qt.Key.Key_Return)
    qtbot.waitUntil(section.token_card.problem.isVisible)
    assert section.token_card.problem.code.text() == "hub.token_form"
    assert "two words" not in section.token_card.problem.happened.text()


def test_a_model_card_is_text_that_loads_nothing_and_opens_links_on_a_press_alone(
    desktop: Desktop, qtbot: QtBot, hub: HubServer, opened: list[str]
) -> None:
    view = judged_card(desktop, qtbot, TINY)
    press(qtbot, view.more)
    qtbot.waitUntil(lambda: view.details.text is not None)
    text = view.details.text
    assert text is not None
    shown = text.toPlainText()
    assert "A tiny model" in shown
    assert "license" not in shown
    assert "tracker" not in text.document().toHtml()
    assert not [r for r in hub.requests if "tracker" in r.path]
    assert opened == []
    text.anchorClicked.emit(QUrl("file:///etc/passwd"))
    assert opened == []
    text.anchorClicked.emit(QUrl("https://example.org/report"))
    assert opened == ["https://example.org/report"]
    assert "every tensor is where the engine expects it" in view.details.numbers.text()
    assert "Version: " in view.details.numbers.text()


def test_without_a_network_the_list_stays_one_sentence_says_so_and_retry_helps(
    open_window, qtbot: QtBot, folders: AppFolders, hub: HubServer
) -> None:
    silent = "http://127.0.0.1:9"
    desktop = open_page(open_window, qtbot, folders.data, silent, "find")
    section, find = page_of(desktop).find_section, desktop.models.find
    qtbot.waitUntil(lambda: find.offline is not None, timeout=30_000)
    qtbot.waitUntil(lambda: section.offline.isVisible() and section.cards.complete)
    assert len(section.cards.cards) > 15
    assert not any(view.problem.isVisible() for view in section.cards.cards.values())
    ask_for(desktop, qtbot, "LLaDA2")
    qtbot.waitUntil(lambda: find.state is Finding.FAILED, timeout=30_000)
    assert section.note.text() == "Meanwhile, the list that ships with Unblur:"
    assert not section.problem.isVisible()
    page_of(desktop).choose("library")
    assert page_of(desktop).library_section.empty.isVisible()
    page_of(desktop).choose("find")
    services = desktop.models._services
    assert services is not None
    services.hub.endpoint = hub.endpoint  # the network is back
    press(qtbot, section.retry)
    qtbot.waitUntil(lambda: find.state is Finding.FOUND)
    assert not section.offline.isVisible()
    assert f"{TINY}@main" in section.cards.cards


def test_a_hub_that_is_busy_is_asked_again_by_a_press(
    desktop: Desktop, qtbot: QtBot, hub: HubServer
) -> None:
    hub.api_status = lambda path: (503, {}) if TINY in path else None
    view = judged_card(desktop, qtbot, TINY)
    assert view.problem.code.text() == "hub.busy"
    hub.api_status = lambda _path: None
    press(qtbot, view.problem.button)
    qtbot.waitUntil(lambda: view.main.text().startswith("Get, "), timeout=20_000)


def test_looks_at_cards_that_left_the_page_are_called_off(
    desktop: Desktop, qtbot: QtBot, hub: HubServer
) -> None:
    hub.trouble = lambda _path: Trouble(silence=20)
    ask_for(desktop, qtbot, TINY)
    view = find_card(desktop, qtbot, f"{TINY}@main")
    find = desktop.models.find
    qtbot.waitUntil(lambda: find.look_of(view.card.key).state is Looking.LOOKING)
    assert not view.main.isEnabled()
    find.call_off({view.card.key})
    qtbot.waitUntil(lambda: find.look_of(view.card.key).state is Looking.UNSEEN)
    assert view.main.text() == "Does it fit?"


def test_the_memory_is_measured_on_request_and_then_a_step_has_a_time(
    desktop: Desktop, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.backend.hub.bandwidth.measure", lambda _device: 2e10)
    section = page_of(desktop).find_section
    qtbot.waitUntil(section.measure.isVisible, timeout=30_000)
    assert "has not been measured" in section.machine.text()
    press(qtbot, section.measure)
    qtbot.waitUntil(lambda: "20 GB/s as measured" in section.machine.text())
    view = judged_card(desktop, qtbot, TINY)
    assert "a step." in view.fit_words.text()


def test_too_little_memory_to_measure_is_said_in_words(
    desktop: Desktop, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_device: str) -> float:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("app.backend.hub.bandwidth.measure", full)
    section = page_of(desktop).find_section
    qtbot.waitUntil(section.measure.isVisible, timeout=30_000)
    press(qtbot, section.measure)
    qtbot.waitUntil(lambda: "Unload the model in use" in section.machine.text())


def test_models_are_judged_anew_on_request(desktop: Desktop, qtbot: QtBot, hub: HubServer) -> None:
    view = judged_card(desktop, qtbot, TINY)
    asked = len(hub.requests)
    press(qtbot, page_of(desktop).find_section.again)
    find = desktop.models.find
    qtbot.waitUntil(lambda: find.look_of(view.card.key).state is Looking.KNOWN, timeout=20_000)
    qtbot.waitUntil(lambda: len(hub.requests) > asked)


def test_control_f_leads_to_the_search_field(desktop: Desktop, qtbot: QtBot) -> None:
    page = page_of(desktop)
    page.choose("downloads")
    page.tabs["downloads"].setFocus()
    QTest.keyClick(page.tabs["downloads"], Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(page.find_section.edit.hasFocus)
