"""What the rules of the house are checked against: the files git knows, parsed once.

Knows git's list of files and the syntax of imports. Refuses to know any rule: those are the tests.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LAYERS = ("app", "engine", "trainer")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file of the project, as git lists them (so that `.venv` and results do not count)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True
    ).stdout
    paths = (REPO / name for name in listing.decode("utf-8").split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def name_of(path: Path) -> str:
    """The path as people write it: from the root, with forward slashes."""
    return path.relative_to(REPO).as_posix()


def python_files() -> tuple[Path, ...]:
    return tuple(path for path in tracked_files() if path.suffix == ".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def module_name(path: Path) -> str:
    """The dotted name under which a file of the project is imported."""
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import in a file, inside functions and TYPE_CHECKING
    too. `from a import b` gives `a.b`: b may be a module."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*prefix, alias.name])) for alias in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")
