"""Settings survive versions, damage and folders that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.backend.settings import VERSION, Settings, SettingsStore


def test_defaults_need_no_file_and_write_none(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "settings.json")
    assert store.current == Settings()
    assert store.problem is None
    assert list(tmp_path.iterdir()) == []


def test_a_change_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ein Ordner mit ü" / "settings.json"
    SettingsStore(path).change(appearance="dark", reduce_motion=True)
    again = SettingsStore(path).current
    assert (again.appearance, again.reduce_motion) == ("dark", True)
    assert json.loads(path.read_text("utf-8"))["version"] == VERSION
    assert [p.name for p in path.parent.iterdir()] == ["settings.json"]  # no half-written file


@pytest.mark.parametrize(
    "values",
    [
        {"appearance": "pink"},
        {"reduce_motion": "yes"},
        {"answer_tokens": 0},
        {"capture": "all"},
        {"serve": 1},
        {"serve_port": 80},
        {"serve_port": 70000},
        {"unknown": 1},
    ],
)
def test_a_value_that_is_not_allowed_changes_nothing(tmp_path: Path, values: dict) -> None:
    store = SettingsStore(tmp_path / "settings.json")
    with pytest.raises((ValueError, TypeError)):
        store.change(**values)
    assert store.current == Settings()


def test_an_older_file_is_migrated_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"version": 1, "theme": "night"}))
    store = SettingsStore(
        path,
        migrations={
            1: lambda d: {"look": d["theme"]},
            2: lambda d: {"appearance": {"night": "dark"}[d["look"]]},
        },
        version=3,
    )
    assert store.current.appearance == "dark"
    store.change(answer_tokens=64)
    assert json.loads(path.read_text())["version"] == 3


def test_a_file_from_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    text = json.dumps({"version": VERSION + 1, "appearance": {"of": "tomorrow"}})
    path.write_text(text)
    store = SettingsStore(path)
    assert store.current == Settings()
    assert store.problem is not None
    assert "newer Unblur" in store.problem
    store.change(appearance="dark")
    assert store.current.appearance == "dark"
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"appearance": "dark"}',
        '{"version": 1, "appearance": "pink"}',
        '{"version": 1e999}',
        '{"version": 1, "answer_tokens": 31}',
        '{"version": 1, "answer_tokens": 8193}',
        '{"version": 1, "answer_tokens": true}',
        "[" * 200_000,
        "",
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_file_is_kept_aside_and_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    store = SettingsStore(path)
    assert store.current == Settings()
    assert store.problem is not None
    (aside,) = [p for p in tmp_path.iterdir() if "damaged" in p.name]
    assert aside.read_text() == text
    assert aside.name in store.problem


def test_no_write_permission_keeps_changes_in_memory_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = SettingsStore(tmp_path / "file" / "settings.json")
    store.change(appearance="dark")
    assert store.current.appearance == "dark"
    assert store.problem is not None
    assert "not writable" in store.problem
    assert "until the window is closed" in store.problem
