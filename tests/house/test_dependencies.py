"""What the code imports is declared, and what is declared is pinned for CI."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from source_tree import LAYERS, REPO, imports, name_of, python_files

# Import name -> distribution, where they differ.
DISTRIBUTION = {
    "PySide6": "pyside6-essentials",
    "shiboken6": "pyside6-essentials",
    "pynvml": "nvidia-ml-py",
    "huggingface_hub": "huggingface-hub",
    "cuda": "cuda-bindings",
    "PIL": "pillow",
    "math_verify": "math-verify",
}


def requirement_name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0].lower()


def declared() -> tuple[set[str], set[str]]:
    """Names of the distributions that the app needs, and of those that only its tests need."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {requirement_name(r) for r in project["dependencies"]}
    return needed, {requirement_name(r) for r in project["optional-dependencies"]["dev"]}


def test_every_import_of_the_app_is_a_declared_dependency() -> None:
    needed, _ = declared()
    undeclared = [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files()
        if path.relative_to(REPO).parts[0] in LAYERS
        for line, name in imports(path)
        if (top := name.split(".")[0]) not in sys.stdlib_module_names
        and top not in (*LAYERS, "__future__")
        and not (path.parent / f"{top}.py").exists()  # a script's neighbour, as in a sandbox
        and DISTRIBUTION.get(top, top).lower() not in needed
    ]
    assert undeclared == []


def test_the_constraints_admit_what_the_project_asks_for() -> None:
    """Every pin lies inside the range that pyproject.toml allows, by packaging's own rules."""
    from packaging.requirements import Requirement

    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = [Requirement(r) for r in project["dependencies"]]
    ranges += [Requirement(r) for r in project["optional-dependencies"]["dev"]]
    text = (REPO / "constraints.txt").read_text(encoding="utf-8")
    pins = {n.lower(): v for n, v in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}
    outside = [
        f"{r.name} {pins[r.name.lower()]}"
        for r in ranges
        if r.name.lower() in pins and pins[r.name.lower()] not in r.specifier
    ]
    assert outside == []
    _, tools = declared()
    assert tools - set(pins) == set(), "a tool without a pin may change its mind in CI"


def test_booleans_survive_qt_signals() -> None:
    """PySide6 6.12 on Python 3.11 loses one reference to True for each emit, until Python dies."""
    code = (
        "import sys\n"
        "from PySide6.QtCore import QObject, Signal\n"
        "class Sender(QObject):\n"
        "    sent = Signal(int)\n"
        "sender = Sender()\n"
        "sender.sent.connect(lambda n: None)\n"
        "before = sys.getrefcount(True)\n"
        "for n in range(1000):\n"
        "    sender.sent.emit(n)\n"
        "print(before - sys.getrefcount(True))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    assert int(answer.stdout) < 100
