"""Pictures of the real window, made without a screen: one true answer, or every page and state.

It knows how to drive a window from outside. `save_answer` uses the real engine on a real model;
`save_pages` uses the scripted engine, because an error card or a half-written block must look the
same each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.backend.conversations import MessageStatus
from app.backend.files import AppFolders
from app.desktop import Desktop, build, make_application
from app.models.copying import target_of
from app.models.lifecycle import Lifecycle
from app.models.model_states import Looking, Scanning
from app.models.snapshot import Snapshot
from app.models.worker import load_real_engine
from app.screenshots_inspector import INSPECTOR_STATES, Shown, show_answer
from app.screenshots_models import show_downloads, show_library, store_for_pictures
from app.ui.empty_state import PROMPTS
from engine.errors import CheckpointError, RuntimeFailure
from engine.fake import DEFAULT_ANSWER, FakeLoader, FakeScript
from engine.protocol import EngineLoader
from engine.types import TokenState

SCALED = "1.25"
_NO_PNG = "The picture's name must end in .png: unblur --screenshot out.png"
LAYOUT_DEPTH = 8  # a change of height is passed on from parent to parent, an event each
CODE_ANSWER = (
    "Plan: split text into words. For each w with `len(w) > 6` append w.\n\n"
    "```python\ndef pick_words(text):\n    result = []\n    for w in text.split():\n"
    "        if len(w) > 6:\n            result.append(w)\n    return result\n```\n\n"
    "| call | result |\n|---|---|\n| `pick_words('a short text')` | `[]` |\n"
    "| `pick_words('diffusion is quick')` | `['diffusion']` |\n\n"
    "Counting again with the second call:\n1 diffusion, 9 letters\n2 is, 2 letters\nAnswer: 1"
)
ANSWERS = {PROMPTS[0]: DEFAULT_ANSWER, PROMPTS[1]: CODE_ANSWER}
NON_FINITE = RuntimeFailure(
    "runtime.not_finite",
    "The model produced numbers that are not finite in block 2, so the answer was stopped.",
    "Try again. If it happens twice, the checkpoint is damaged: download it again.",
)
TRUNCATED = CheckpointError(
    "checkpoint.truncated",
    "model.safetensors ends after 24,921 of 41,536 bytes: the file is truncated.",
    "Download the model again, or open another folder.",
    file="model.safetensors",
)


def save_answer(target: Path, model: str | None = None, prompt: str | None = None) -> int:
    """Loads the demo (or `model`), asks `prompt` (or the first suggestion), saves two pictures.

    `target` shows the finished answer, `<target>-denoising.png` the same window while the second
    block (the first, if there is only one) is half written. Prints both paths. Exit status 1, with
    the reason, when that fails.
    """
    problem = _unwritable(target.parent) if target.suffix.lower() == ".png" else _NO_PNG
    if problem:
        print(problem)
        return 1
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    app = make_application()
    with tempfile.TemporaryDirectory() as folder:
        desktop = _desktop(app, Path(folder), load_real_engine)
        try:
            return _answer(desktop, target, model, PROMPTS[0] if prompt is None else prompt)
        finally:
            desktop.window.close()


def _answer(desktop: Desktop, target: Path, model: str | None, prompt: str) -> int:
    engine, window = desktop.engine, desktop.window
    if model is None:
        engine.load_demo()
    else:
        engine.load(model)
    _wait(lambda: engine.state in (Lifecycle.READY, Lifecycle.FAILED), seconds=300)
    if engine.state is not Lifecycle.READY:
        failure = engine.failure
        print(
            f"{failure.message} {failure.action}" if failure else "The model did not load in time."
        )
        return 1
    if (blocked := desktop.chat.blocked_reason(prompt)) is not None:
        print(f"The picture could not be made: {blocked}")
        return 1
    midway = target.with_name(f"{target.stem}-denoising.png")
    best = 0
    unsaved: OSError | None = None

    def catch(snapshot: Snapshot) -> None:
        """Saves the window whenever it shows more of denoising than what was saved before."""
        nonlocal best, unsaved
        shows = denoising_shown(snapshot)
        if shows > best and unsaved is None:
            best = shows
            try:
                _save(window, midway)
            except OSError as error:
                unsaved = error

    engine.snapshot_changed.connect(catch)
    desktop.chat.send(prompt)
    _wait(lambda: engine.state is not Lifecycle.GENERATING, seconds=300)
    _settle()
    answer = desktop.chat.current.messages[-1]
    if answer.status is not MessageStatus.DONE or best == 0:
        why = (
            answer.failure.message if answer.failure else "no half-written block was seen in time."
        )
        print(f"The picture could not be made: {why}")
        return 1
    try:
        if unsaved is not None:
            raise unsaved
        _save(window, target)
    except OSError as error:
        print(f"The picture could not be saved: {error}")
        return 1
    print(midway)
    print(target)
    return 0


def _unwritable(folder: Path) -> str | None:
    """Why no picture can be put into `folder` (made if it is missing), or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        reason = error.strerror or str(error)
        return f"Pictures cannot be saved in {folder} ({reason}). Choose another place."


def denoising_shown(snapshot: Snapshot) -> int:
    """How much of denoising a snapshot shows: 0 nothing, 1 a block of masks, 2 that behind finished
    blocks, 3 a block half written, 4 that behind finished blocks."""
    current = snapshot.blocks[-1]
    if current.final:
        return 0
    states = {cell.state for cell in current.cells}
    half = TokenState.DRAFT in states and TokenState.COMMITTED in states
    return 1 + 2 * half + (current.index > 0)


def save_pages(folder: Path) -> int:
    """Saves every page and state as <state>-light.png, -dark.png and -light-125.png, and prints the
    paths. Exit status 1, with the reason, when the folder cannot be written.
    """
    problem = _unwritable(folder)
    if problem:
        print(problem)
        return 1
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    scaled = os.environ.get("QT_SCALE_FACTOR") == SCALED
    app = make_application()
    for appearance in ("light",) if scaled else ("light", "dark"):
        suffix = f"{appearance}-125" if scaled else appearance
        for name, make in STATES.items():
            with tempfile.TemporaryDirectory() as scratch:
                desktop = make(app, Path(scratch), appearance)
                path = folder / f"{name}-{suffix}.png"
                _save(desktop.window, path)
                desktop.engine.stop()
                desktop.window.close()
                desktop.window.deleteLater()
                print(path, flush=True)
    if scaled:
        return 0
    # the scale is read when Qt starts, so the scaled pictures need a process of their own
    command = [sys.executable, "-m", "app", "--screenshots", str(folder)]
    return subprocess.run(command, env={**os.environ, "QT_SCALE_FACTOR": SCALED}).returncode


def _ready(
    app: QApplication, scratch: Path, appearance: str, loader: EngineLoader | None = None
) -> Desktop:
    script = FakeScript(answers=ANSWERS, seconds_per_step=0.01)
    desktop = _desktop(app, scratch, loader or FakeLoader(script), appearance)
    desktop.engine.load_demo()
    _wait(lambda: not desktop.engine.busy)
    return desktop


def _empty(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _ready(app, scratch, appearance)
    _settle()
    return desktop


def _loading(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _desktop(app, scratch, FakeLoader(chunks=8, seconds_per_chunk=0.15), appearance)
    desktop.engine.load_demo()
    desktop.chat.send(PROMPTS[0])
    _wait(lambda: _share_loaded(desktop) > 0.3)
    return desktop


def _share_loaded(desktop: Desktop) -> float:
    progress = desktop.engine.progress
    return progress.done_bytes / progress.total_bytes if progress and progress.total_bytes else 0.0


def _denoising(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    script = FakeScript(answers=ANSWERS, seconds_per_step=0.12, edits_per_block=2)
    desktop = _ready(app, scratch, appearance, FakeLoader(script))
    seen: list[Snapshot] = []
    desktop.engine.snapshot_changed.connect(seen.append)
    desktop.chat.send(PROMPTS[0])
    _wait(lambda: bool(seen) and seen[-1].figures.block == 3 and seen[-1].figures.step == 5)
    return desktop


def _final(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _ready(app, scratch, appearance)
    for prompt in PROMPTS[:2]:
        desktop.chat.send(prompt)
        _wait(lambda: not desktop.engine.busy)
    _settle()
    return desktop


def _failed_answer(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    script = FakeScript(answers=ANSWERS, fail_at=(2, 1), error=NON_FINITE)
    desktop = _ready(app, scratch, appearance, FakeLoader(script))
    desktop.chat.send(PROMPTS[0])
    _wait(lambda: not desktop.engine.busy)
    _settle()
    return desktop


def _failed_load(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _desktop(app, scratch, FakeLoader(error=TRUNCATED), appearance)
    desktop.engine.load("models/LLaDA2.1-mini-NVFP4")
    _wait(lambda: not desktop.engine.busy)
    _settle()
    return desktop


def _models_page(
    app: QApplication, scratch: Path, appearance: str, section: str, online: bool = True
) -> Desktop:
    """The Models page with a made-up library."""
    loader = FakeLoader(FakeScript(answers=ANSWERS, seconds_per_step=0.01))
    desktop = _desktop(app, scratch, loader, appearance, online)
    desktop.engine.load_demo()
    desktop.window.rail.choose("models")
    library = desktop.models.library
    _wait(lambda: not desktop.engine.busy and library.state is Scanning.SHOWN)
    _settle()
    show_library(desktop.models)
    desktop.window.models_page.choose(section)
    _settle()
    return desktop


def _models(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    return _models_page(app, scratch, appearance, "library")


def _models_bottom(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models(app, scratch, appearance)
    bar = desktop.window.models_page.library_section.verticalScrollBar()
    bar.setValue(bar.maximum())
    _settle()
    return desktop


def _models_empty(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _desktop(app, scratch, FakeLoader(), appearance)
    desktop.window.rail.choose("models")
    _wait(lambda: desktop.models.library.state is Scanning.SHOWN)
    _settle()
    return desktop


def _models_copy(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models(app, scratch, appearance)
    section, copying = desktop.window.models_page.library_section, desktop.models.copying
    model = desktop.models.library.shelf.view.models[0]
    copying.start(model, target_of(model, model.root))
    _wait(lambda: not copying.busy)
    _settle()
    section.copy_card.details.click()
    show_library(desktop.models)
    section.ensureWidgetVisible(section.copy_card)
    _settle()
    return desktop


def _models_find(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_page(app, scratch, appearance, "find")
    _wait(lambda: _looks_done(desktop))
    _settle()
    return desktop


def _models_does_not_fit(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_find(app, scratch, appearance)
    section = desktop.window.models_page.find_section
    next(iter(section.cards.cards.values())).more.click()
    _settle()
    return desktop


def _models_search(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_find(app, scratch, appearance)
    section = desktop.window.models_page.find_section
    section.edit.setText("LLaDA2.1-mini")
    section.go.click()
    _settle()
    _wait(lambda: _looks_done(desktop))
    _settle()
    return desktop


def _models_token(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_search(app, scratch, appearance)
    desktop.window.models_page.find_section.show_token()
    _settle()
    return desktop


def _models_offline(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_page(app, scratch, appearance, "find", online=False)
    _wait(lambda: desktop.models.find.offline is not None)
    _settle()
    return desktop


def _models_downloads(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _models_page(app, scratch, appearance, "downloads")
    show_downloads(desktop.models)
    _settle()
    return desktop


def _looks_done(desktop: Desktop) -> bool:
    section = desktop.window.models_page.find_section
    seen = [desktop.models.find.look_of(key).state for key in section.cards.cards]
    return section.cards.complete and Looking.KNOWN in seen and Looking.LOOKING not in seen


def _settings(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _ready(app, scratch, appearance)
    desktop.window.rail.choose("settings")
    _settle()
    return desktop


def _inspector_empty(app: QApplication, scratch: Path, appearance: str) -> Desktop:
    desktop = _desktop(app, scratch, FakeLoader(), appearance)
    desktop.window.rail.choose("inspector")
    _settle()
    return desktop


def _inspector(show: Shown | None, app: QApplication, scratch: Path, appearance: str) -> Desktop:
    script = FakeScript(answers=ANSWERS, seconds_per_step=0.004, edits_per_block=2)
    desktop = _ready(app, scratch, appearance, FakeLoader(script))
    show_answer(desktop, _wait, PROMPTS[0])
    _settle()
    if show is not None:
        show(desktop, _wait)
        _settle()
    return desktop


STATES: dict[str, Callable[[QApplication, Path, str], Desktop]] = {
    "chat-empty": _empty,
    "chat-loading": _loading,
    "chat-denoising": _denoising,
    "chat-final": _final,
    "chat-failed-answer": _failed_answer,
    "chat-failed-load": _failed_load,
    "models-library": _models,
    "models-library-end": _models_bottom,
    "models-empty": _models_empty,
    "models-copy": _models_copy,
    "models-find": _models_find,
    "models-does-not-fit": _models_does_not_fit,
    "models-search": _models_search,
    "models-token": _models_token,
    "models-offline": _models_offline,
    "models-downloads": _models_downloads,
    "settings": _settings,
    "inspector-empty": _inspector_empty,
    **{name: partial(_inspector, show) for name, show in INSPECTOR_STATES.items()},
}


def _desktop(
    app: QApplication,
    folder: Path,
    loader: EngineLoader,
    appearance: str = "light",
    online: bool = True,
) -> Desktop:
    folders = AppFolders(folder / "data", folder / "config", folder / "logs")
    desktop = build(app, folders, loader, models=store_for_pictures(folder, online))
    desktop.theme.choose(appearance)
    desktop.window.show()
    _settle()
    return desktop


def _save(widget: QWidget, path: Path) -> None:
    """Saves the widget as it is, with every layout change that is still queued."""
    for _ in range(LAYOUT_DEPTH):
        QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not widget.grab().save(str(path)):
        raise OSError(f"{path} could not be written")


def _wait(done: Callable[[], bool], seconds: float = 30) -> None:
    """Lets the window live until `done`, or until time is up."""
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        _turn(5)


def _settle() -> None:
    """Lets layouts, fades and queued paints finish."""
    for _ in range(10):
        _turn(30)


def _turn(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()
