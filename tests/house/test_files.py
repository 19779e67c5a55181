"""The house's rules on files: length, docstrings, size, and what no file may say or do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import REPO, name_of, parsed, python_files, tracked_files

MAX_LINES = 500
MAX_FILE_BYTES = 4 * 2**20
MAX_DEMO_BYTES = 24 * 2**20
DEMO = "assets/demo/"
TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".sh", ".ps1", ".qss", ""}

# Built from pieces, so that this file does not contain what it forbids.
MACHINE_PATH = re.compile(r"(?<![\w.$}>~-])/" + r"(?:work|root|tmp|home/\w+)/")
HOSTS = re.compile(
    r"\b(?:pypi|pythonhosted|debian|ubuntu|npmjs|anaconda)" + r"\.(?:org|com)\b", re.IGNORECASE
)
TORCH_INDEX = re.compile(r"download\.pytorch" + r"\.org")


def text_files() -> Iterator[tuple[Path, str]]:
    for path in tracked_files():
        if path.suffix in TEXT:
            yield path, path.read_text(encoding="utf-8")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_is_longer_than_the_house_allows() -> None:
    long = [
        f"{name_of(path)}: {lines} lines"
        for path in python_files()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    """Only an empty __init__.py may be silent."""
    silent = [
        name_of(path)
        for path in python_files()
        if parsed(path).body and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


def test_empty_modules_are_packages() -> None:
    empty = [name_of(p) for p in python_files() if not parsed(p).body and p.name != "__init__.py"]
    assert empty == []


def test_no_file_names_a_path_of_some_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_with(HOSTS) == []


def test_torch_indexes_are_named_in_one_place() -> None:
    """One table in run.py, which an environment variable and pip's configuration override."""
    found = lines_with(TORCH_INDEX)
    assert len(found) == 1, found
    assert found[0].startswith("run.py:")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MACHINE_PATH, "see /" + "work/main"),
        (MACHINE_PATH, "'/" + "tmp/x'"),
        (MACHINE_PATH, "/" + "home/someone/models"),
        (HOSTS, "https://pypi" + ".org/simple"),
    ],
)
def test_the_patterns_find_what_they_forbid(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)
    assert not pattern.search("a framework/network, ~/models, https://huggingface.co/org/name")


def dangers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of code that would run code from a model folder: pickles and remote code."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(a.name.split(".")[0] in PICKLES for a in names):
                yield node.lineno, "import of a pickle module"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLES:
                yield node.lineno, "import of a pickle module"
            case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                yield node.lineno, "torch" + ".load"
            case ast.keyword(arg=str(arg)) if arg == REMOTE:
                yield node.lineno, REMOTE
            case ast.Constant(value=str(value)) if value == REMOTE:
                yield node.lineno, REMOTE


PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
REMOTE = "trust_remote" + "_code"


def test_no_code_is_loaded_from_a_model_folder() -> None:
    found = [
        f"{name_of(path)}:{line}: {what}"
        for path in python_files()
        for line, what in dangers(parsed(path))
    ]
    assert found == []


def test_dangers_are_recognised() -> None:
    code = f"import pickle\nfrom dill import x\ntorch.load(p)\nf({REMOTE}=True)\n"
    assert sorted(line for line, _ in dangers(ast.parse(code))) == [1, 2, 3, 4]
    assert list(dangers(ast.parse("model.load(p)\ntorch.loads_of_fun()\njson.load(f)"))) == []


def test_no_file_is_too_big_for_git_and_the_demo_stays_small() -> None:
    sizes = {name_of(path): path.stat().st_size for path in tracked_files()}
    big = {n: s for n, s in sizes.items() if s > MAX_FILE_BYTES and not n.startswith(DEMO)}
    assert big == {}
    assert sum(s for n, s in sizes.items() if n.startswith(DEMO)) <= MAX_DEMO_BYTES


def test_the_licence_is_whole() -> None:
    text = (REPO / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_paths_in_the_repository_work_on_windows() -> None:
    names = [name_of(path) for path in tracked_files()]
    assert [n for n in names if re.search(r'[<>:"\\|?*]|[ .]$', n)] == []
    folded = [n.casefold() for n in names]
    assert sorted(folded) == sorted(set(folded))
