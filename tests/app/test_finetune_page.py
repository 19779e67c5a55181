"""The finetune wizard by mouse and keys: the whole path on the demo, and coming back to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QComboBox
from pytestqt.qtbot import QtBot

from app.backend.files import DEMO_MODEL, AppFolders
from app.desktop import Desktop
from app.models.finetune import Draft, FinetuneModel, Step, read_draft
from app.models.lifecycle import Lifecycle
from app.models.worker import load_real_engine
from app.ui.finetune.page import FinetunePage
from trainer.data.skills import generate_examples

SMALL = {
    "rollouts": 4,
    "rows": 4,
    "window": 16,
    "micro_blocks": 32,
    "max_new_tokens": 48,
    "learning_rate": 1e-3,
}


def _examples(path: Path, count: int = 12) -> Path:
    rows = [
        {"prompt": e.prompt, "answer": e.answer, "skill": e.skill, "check": e.check}
        for e in generate_examples(3, 0, count, "heldout_templates")
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def _page(desktop: Desktop) -> FinetunePage:
    desktop.window.rail.choose("finetune")
    return desktop.window.finetune_page


def _click(button: QAbstractButton) -> None:
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def _read(qtbot: QtBot, model: FinetuneModel) -> None:
    qtbot.waitUntil(lambda: not model.reading, timeout=20_000)


def test_the_next_button_says_what_is_missing(open_window, qtbot: QtBot, tmp_path: Path) -> None:
    desktop = open_window(loaded=False)
    page, model = _page(desktop), desktop.window.finetune
    assert page.step is Step.DATA
    assert not page.next_button.isEnabled()
    assert "file of examples" in page.missing.text()
    model.change(files=(str(_examples(tmp_path / "x.jsonl")),), model=str(DEMO_MODEL))
    _read(qtbot, model)
    assert page.next_button.isEnabled()
    _click(page.next_button)
    assert page.step is Step.CHECK
    check = page.steps[Step.CHECK]
    assert "12 examples" in check.counts.text()  # type: ignore[attr-defined]
    assert "number" in check.verifiers  # type: ignore[attr-defined]


def test_a_file_that_is_no_data_is_refused_in_words(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    desktop = open_window(loaded=False)
    page, model = _page(desktop), desktop.window.finetune
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n[1]\n", encoding="utf-8")
    model.change(files=(str(bad),), model=str(DEMO_MODEL))
    _read(qtbot, model)
    assert model.problem is not None
    assert page.steps[Step.DATA].problem.isVisible()  # type: ignore[attr-defined]
    assert not page.next_button.isEnabled()
    assert page.missing.text()


def test_what_was_decided_is_there_again(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    desktop = open_window(loaded=False)
    model = desktop.window.finetune
    page = _page(desktop)
    model.change(files=(str(_examples(tmp_path / "x.jsonl")),), model=str(DEMO_MODEL))
    _read(qtbot, model)
    page.choose(Step.RECIPE)
    recipe = page.steps[Step.RECIPE]
    recipe.goals[False].click()  # type: ignore[attr-defined]
    recipe.presets["quick"].click()  # type: ignore[attr-defined]
    kept = read_draft(folders.data / "finetune.json")
    assert (kept.teach, kept.preset, kept.files) == (False, "quick", model.draft.files)


@pytest.mark.parametrize(
    "text", ["", "{", '{"files": 3}', '{"preset": "x"}', '{"changes": {"rho": 7}}']
)
def test_a_damaged_draft_begins_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "finetune.json"
    path.write_text(text, encoding="utf-8")
    draft = read_draft(path)
    assert draft.preset == "small"
    assert draft.changes == {}


def test_a_wrong_recipe_field_is_refused_by_its_name(
    open_window, qtbot: QtBot, tmp_path: Path
) -> None:
    desktop = open_window(loaded=False)
    page, model = _page(desktop), desktop.window.finetune
    page.choose(Step.RECIPE)
    recipe = page.steps[Step.RECIPE]
    recipe.show_fields.click()  # type: ignore[attr-defined]
    table = recipe.table  # type: ignore[attr-defined]
    names = [table.item(n, 0).text() for n in range(table.rowCount())]
    place = names.index("rho")
    table.item(place, 1).setText("7")
    assert "rho" in recipe.problem.happened.text()  # type: ignore[attr-defined]
    assert model.draft.changes == {}
    table.item(place, 1).setText("0.5")
    assert model.draft.changes == {"rho": 0.5}


def test_every_control_of_every_step_has_a_name(open_window, qtbot: QtBot, tmp_path: Path) -> None:
    desktop = open_window(loaded=False)
    page = _page(desktop)
    desktop.window.finetune.change(
        files=(str(_examples(tmp_path / "x.jsonl")),), model=str(DEMO_MODEL)
    )
    _read(qtbot, desktop.window.finetune)
    for step in Step:
        page.choose(step)
        controls = [*page.findChildren(QAbstractButton), *page.findChildren(QComboBox)]
        unnamed = [
            c
            for c in controls
            if c.isVisible()
            and not (c.accessibleName() or getattr(c, "text", lambda: "")())
            and c.objectName() != "qt_toolbar_ext_button"
        ]
        assert unnamed == []


def test_from_a_file_of_examples_to_a_model_that_answers(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    desktop = open_window(loader=load_real_engine, loaded=False)
    window = desktop.window
    page, model, run = _page(desktop), window.finetune, window.training
    model.change(
        files=(str(_examples(tmp_path / "x.jsonl")),),
        model=str(DEMO_MODEL),
        verifier="demo",
        preset="quick",
        changes={**SMALL, "teach": 3},
        replay=0.0,
    )
    _read(qtbot, model)
    for step in (Step.DATA, Step.CHECK, Step.FIT, Step.RECIPE):
        assert page.step is step
        _click(page.next_button)
    assert page.step is Step.RUN
    _click(page.run_step.start_button)
    qtbot.waitUntil(lambda: len(run.watched.updates) >= 4, timeout=240_000)
    assert run.alive
    _click(page.run_step.stop_button)
    qtbot.waitUntil(lambda: run.status is not None and not run.alive, timeout=120_000)
    assert run.status is not None
    assert run.status.state == "stopped"
    assert page.run_step.again_button.isVisible()
    page.choose(Step.KEEP)
    page.keep.write_into(tmp_path)
    qtbot.waitUntil(lambda: not run.exporting, timeout=240_000)
    assert run.problem is None, run.problem
    made = next(tmp_path.glob("*-nvfp4"))
    assert "ORL" in (made / "README.md").read_text(encoding="utf-8")
    _click(page.keep.use_button)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY, timeout=120_000)
    desktop.chat.send("Is 1996 a leap year?")
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.GENERATING, timeout=20_000)
    qtbot.waitUntil(lambda: desktop.engine.state is Lifecycle.READY, timeout=60_000)


def test_a_discarded_run_comes_back(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    from trainer.run_dir import RunDir

    draft = Draft((str(_examples(tmp_path / "x.jsonl")),), model=str(DEMO_MODEL))
    run = RunDir.create(folders.data / "runs" / "mine", draft.spec(), {})
    run.beat("finished", 1, "It ran to its end.")
    desktop = open_window(loaded=False)
    page, model = _page(desktop), desktop.window.finetune
    model.change(run=str(run.path))
    page.choose(Step.KEEP)
    qtbot.waitUntil(lambda: desktop.window.training.status is not None, timeout=10_000)
    _click(page.keep.discard_button)
    qtbot.waitUntil(lambda: model.draft.run == "", timeout=10_000)
    assert not run.path.exists()
    _click(page.keep.undo_button)
    qtbot.waitUntil(lambda: model.draft.run == str(run.path), timeout=10_000)
    assert run.path.exists()


def test_a_run_that_goes_on_is_found_by_the_next_window(
    open_window, qtbot: QtBot, folders: AppFolders, tmp_path: Path
) -> None:
    from trainer.events import TrainEvent
    from trainer.run_dir import RunDir

    draft = Draft((str(_examples(tmp_path / "x.jsonl")),), model=str(DEMO_MODEL))
    run = RunDir.create(folders.data / "runs" / "mine", draft.spec(), {})
    run.append(TrainEvent("metrics", 1, {"loss": 1.0, "tpf": 3.0}))
    run.beat("running", 1)
    text = json.dumps({"files": list(draft.files), "model": draft.model, "run": str(run.path)})
    (folders.data / "finetune.json").write_text(text, encoding="utf-8")
    desktop = open_window(loaded=False)
    page = _page(desktop)
    assert page.step is Step.RUN
    qtbot.waitUntil(lambda: bool(desktop.window.training.watched.updates), timeout=10_000)
    assert desktop.window.training.alive
    _click(page.run_step.pause_button)
    qtbot.waitUntil(lambda: (run.path / "control").exists(), timeout=10_000)
    assert run.asked() == "pause"
