"""Imports point down only: ui -> models -> backend -> (engine, trainer's specs); engine alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from source_tree import REPO, imports, is_within, module_name, name_of, python_files

QT = ("PySide6", "shiboken6", "pyqtgraph")
WIDGETS = ("PySide6.QtWidgets", "PySide6.QtQuick", "pyqtgraph")
# package: what no file in it may import.
FORBIDDEN = {
    "engine": (*QT, "trainer", "app"),
    "trainer": (*QT, "app"),
    "app.backend": (*WIDGETS, "app.models", "app.ui"),
    "app.models": (*WIDGETS, "app.ui"),
    "app.server": (*QT, "app.backend", "app.models", "app.ui"),
}
# What the window may know of training: the request, the events, a run's folder, and how data is
# read, checked and judged; never the loop, a learner or torch. `trainer.__main__` is what a frozen
# app becomes when it is called with --trainer.
TRAINER_SEAM = (
    "trainer.__main__",
    "trainer.spec",
    "trainer.events",
    "trainer.run_dir",
    "trainer.orl.recipe",
    "trainer.strict_json",
    "trainer.data",
    "trainer.verify.registry",
    "trainer.verify.verifier_spec",
)


def forbidden_imports(package: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{name_of(path)}:{line}: {package} must not import {name}"
        for path in python_files()
        if is_within(module_name(path), package)
        for line, name in imports(path)
        if any(is_within(name, f) for f in forbidden)
    ]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_down_only(package: str) -> None:
    assert forbidden_imports(package, FORBIDDEN[package]) == []


def test_the_check_itself_finds_an_import_that_points_up() -> None:
    """The window's files import Qt: asked of `app.ui`, the same rule must object."""
    assert forbidden_imports("app.ui", QT)


def test_the_window_knows_of_training_only_its_specs() -> None:
    found = [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files()
        if is_within(module_name(path), "app")
        for line, name in imports(path)
        if is_within(name, "trainer") and not any(is_within(name, s) for s in TRAINER_SEAM)
    ]
    assert found == []


def test_every_import_of_the_project_exists() -> None:
    """A module that was renamed or never written is found without running the code."""
    known = {module_name(path) for path in python_files()}

    def exists(name: str) -> bool:
        return name in known or name.rpartition(".")[0] in known

    missing = [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files()
        for line, name in imports(path)
        if name.split(".")[0] in ("app", "engine", "trainer") and not exists(name)
    ]
    assert missing == []


def run_without(
    blocked: tuple[str, ...], code: str, *args: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter in which importing any of `blocked` fails."""
    guard = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {blocked!r}:\n"
        "            raise ImportError(f'{name} is blocked by this test')\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", guard + code, *args],
        cwd=REPO,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_the_guard_blocks() -> None:
    answer = run_without(("torch",), "import torch")
    assert "torch is blocked by this test" in answer.stderr


@pytest.mark.parametrize("module", ["types", "errors", "protocol", "fake"])
def test_the_seam_imports_without_torch(module: str) -> None:
    answer = run_without((*QT, "torch", "transformers"), f"import engine.{module}")
    assert answer.returncode == 0, answer.stderr


def test_the_engine_imports_without_qt() -> None:
    answer = run_without(QT, "import engine.engine, engine.cli, engine.__main__")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("generate", "--help"),
        ("inspect", "--help"),
        ("models", "--help"),
        ("trace", "--help"),
        ("serve", "--help"),
    ],
)
def test_commands_without_a_window_import_no_qt(args: tuple[str, ...]) -> None:
    code = "import runpy\nrunpy.run_module('app', run_name='__main__')"
    answer = run_without(QT, code, *args)
    assert answer.returncode == 0, answer.stderr
    assert "usage" in answer.stdout.lower()


def test_the_layers_are_where_the_rules_look() -> None:
    """A layer that moved would leave its rule checking nothing."""
    names = {module_name(path) for path in python_files()}
    for package in ("engine", "trainer", "app.backend", "app.models", "app.ui"):
        assert any(name.startswith(package + ".") for name in names), package
