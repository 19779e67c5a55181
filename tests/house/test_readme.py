"""What the documents promise exists: every command, every option in it, every linked file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from source_tree import REPO, name_of, tracked_files

import run

FENCE = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(python .*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:python|unblur) [^`]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def documents() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def commands(text: str) -> list[list[str]]:
    """Commands of Unblur in a document, split as a shell would, comments dropped."""
    text = text.replace("\\\n", " ")  # a command may go on in the next line
    fenced = [line for block in FENCE.findall(text) for line in block.splitlines()]
    lines = [line.removeprefix("$ ") for line in fenced]
    lines += INDENTED.findall(text) + INLINE.findall(text)
    split = [shlex.split(line, comments=True) for line in lines]
    return [words for words in split if words and words[0] in ("python", "unblur")]


@cache
def help_of(module: str, *subcommand: str) -> str:
    """The help text of a command; fails where the command does not exist."""
    command = [sys.executable, "-m", module, *subcommand, "--help"]
    answer = subprocess.run(command, cwd=REPO, capture_output=True, encoding="utf-8", check=False)
    assert answer.returncode == 0, f"{' '.join(command[1:])}: {answer.stderr}"
    return answer.stdout


def problem_with(words: list[str]) -> str | None:
    """Why a documented command would not work as written, or None."""
    if words[0] == "unblur":
        words = ["python", "run.py", *words[1:]]
    if words[1] == "-m":
        module, arguments = words[2], words[3:]
    elif words[1] == "run.py":
        module, arguments = "app", words[2:]
    else:
        return None if (REPO / words[1]).is_file() else f"there is no {words[1]}"
    if arguments[:1] == ["ARGS"] or (arguments[:1] == ["test"] and module == "app"):
        return None
    is_command = bool(arguments) and not arguments[0].startswith("-") and "." not in module
    known = help_of(module, *arguments[:1]) if is_command else help_of(module)
    if module == "app":
        known += run.HELP
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    unknown = [o for o in options if not re.search(rf"(?<![\w-]){re.escape(o)}(?![\w-])", known)]
    return f"unknown option {' '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_command_in_a_document_exists(path: Path) -> None:
    found = commands(path.read_text(encoding="utf-8"))
    problems = {" ".join(words): problem_with(words) for words in found}
    assert {command: why for command, why in problems.items() if why} == {}


def test_the_readme_shows_the_two_commands() -> None:
    found = commands((REPO / "README.md").read_text(encoding="utf-8"))
    assert ["python", "run.py"] in found
    assert ["python", "run.py", "test"] in found


def test_an_invented_option_is_found() -> None:
    assert problem_with(["python", "run.py", "generate", "--make-it-good", "x"]) is not None
    assert problem_with(["python", "no_such_file.py"]) is not None


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_link_in_a_document_leads_somewhere(path: Path) -> None:
    targets = LINK.findall(path.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_names_that_a_document_points_to_are_in_the_file(path: Path) -> None:
    """`EngineModel` ([app/models/engine_model.py](...)): the file defines what it is named for."""
    text = path.read_text(encoding="utf-8")
    pointed = re.findall(r"`([\w.]+)`\s*\(\[[^\]]+\]\(([^)]+\.py)\)", text)
    missing = [
        f"{name} in {target}"
        for name, target in pointed
        for part in name.split(".")
        if not re.search(rf"(?:class|def) {part}\b", (path.parent / target).read_text("utf-8"))
    ]
    assert missing == []


def test_the_readme_says_what_it_cannot_do() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    for limit in ("several GPUs", "many users", "autoregressive", "no images"):
        assert limit in text
