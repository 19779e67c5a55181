"""The inspector's page in its states, for pictures: a scripted answer, looked at in every way.

It knows what is pressed to reach a state. The trace is the scripted engine's: nothing in it was
measured on a model. It is handed a window with a model loaded and a way to let it live.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtWidgets import QCompleter

from app.desktop import Desktop
from app.models.inspector_curves import MarkKind
from app.ui.inspector.compare_panel import ComparePanel
from app.ui.inspector.fork_panel import ForkPanel
from app.ui.inspector.why_panel import WhyPanel
from engine.types import TokenState

Wait = Callable[[Callable[[], bool]], None]
Shown = Callable[[Desktop, Wait], None]
PLACE = 12  # the pictures show the first edit from this step on


def show_answer(desktop: Desktop, wait: Wait, prompt: str) -> None:
    """Asks, waits for the end, and opens the answer at a step of its second block."""
    desktop.settings.change(capture="top-k")
    desktop.window.inspector_page.capture.mark("top-k")
    desktop.chat.send(prompt)
    wait(lambda: not desktop.engine.busy)
    desktop.window.inspect(desktop.chat.current.messages[-1].id)
    model = desktop.window.inspector
    edit = next(m for m in model.marks if m.kind is MarkKind.EDIT and m.step >= PLACE)
    model.scrub(edit.step)
    model.select(position=edit.position)


def show_entropy(desktop: Desktop, _wait: Wait) -> None:
    page = desktop.window.inspector_page
    page.fill.buttons["entropy"].click()
    page.span.buttons["block"].click()


def show_margin_not_captured(desktop: Desktop, wait: Wait) -> None:
    desktop.settings.change(capture="light")
    desktop.window.inspector_page.capture.mark("light")
    desktop.chat.send("And without candidates?")
    wait(lambda: not desktop.engine.busy)
    desktop.window.inspect(desktop.chat.current.messages[-1].id)
    desktop.window.inspector.select(PLACE, 40)
    desktop.window.inspector_page.fill.buttons["margin"].click()


def show_words(desktop: Desktop, _wait: Wait) -> None:
    desktop.window.inspector_page.words.click()


def show_numbers(desktop: Desktop, _wait: Wait) -> None:
    desktop.window.inspector_page.side.choose("numbers")


def show_what_if(desktop: Desktop, wait: Wait) -> None:
    """Two forks, the second of the first."""
    side, model = desktop.window.inspector_page.side, desktop.window.inspector
    side.choose("forks")
    panel = side.panels["forks"]
    assert isinstance(panel, ForkPanel)
    wait(panel.isVisible)
    panel.token.setCompleter(QCompleter(panel))  # its list would hide the panel
    panel.token.setText(" plus")
    wait(panel.run_button.isEnabled)
    panel.run_button.click()
    wait(lambda: not desktop.engine.busy)
    data = model.data
    assert data is not None
    step = model.selection.step + 2
    begin = data.segment_at(step).begin
    settled = data.trace.state[step] == TokenState.COMMITTED
    model.select(step, begin + int(settled.argmax()))
    panel.kinds["mask"].setChecked(True)
    panel.threshold.setValue(0.8)
    panel.run_button.click()
    wait(lambda: not desktop.engine.busy)


def show_compare(desktop: Desktop, wait: Wait) -> None:
    show_what_if(desktop, wait)
    side = desktop.window.inspector_page.side
    side.choose("compare")
    panel = side.panels["compare"]
    assert isinstance(panel, ComparePanel)
    panel.fill_menu()
    panel.menu.actions()[0].trigger()
    wait(lambda: desktop.window.comparison.result is not None)
    panel.go.click()


def show_why(desktop: Desktop, wait: Wait) -> None:
    side = desktop.window.inspector_page.side
    side.choose("why")
    panel = side.panels["why"]
    assert isinstance(panel, WhyPanel)
    wait(panel.button.isEnabled)
    panel.button.click()
    wait(lambda: not desktop.engine.busy)


def show_damaged(desktop: Desktop, wait: Wait) -> None:
    """A file that is no trace, opened over an answer."""
    path = Path(desktop.settings.path).parent / "notes.dntrace"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("no trace", encoding="utf-8")
    desktop.window.open_trace(str(path))
    wait(desktop.window.inspector_page.problem.isVisible)


INSPECTOR_STATES: dict[str, Shown | None] = {
    "inspector": None,
    "inspector-entropy-block": show_entropy,
    "inspector-not-captured": show_margin_not_captured,
    "inspector-words": show_words,
    "inspector-numbers": show_numbers,
    "inspector-why": show_why,
    "inspector-what-if": show_what_if,
    "inspector-compare": show_compare,
    "inspector-damaged-file": show_damaged,
}
