"""`unblur trace`: replies of the demo recorded, shown, forked and explained in a terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli_trace import main
from engine.engine import TorchEngine, load_engine
from engine.paths import demo_folder
from engine.trace import Trace, open_trace
from engine.types import StepTaken

PROMPT = "Write a haiku about the sea and a cat."


@pytest.fixture(scope="module")
def demo() -> TorchEngine:
    return load_engine(demo_folder(), device="cpu")


@pytest.fixture
def run(demo: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on the demo that is loaded already."""
    monkeypatch.setattr("app.cli_trace.engine_from", lambda options: demo)
    monkeypatch.setattr(demo, "unload", lambda: None)
    return lambda *args: main([str(arg) for arg in args])


@pytest.fixture
def file(run: Any, tmp_path: Path) -> Path:
    path = tmp_path / "a.dntrace"
    assert run("record", PROMPT, "-o", path, "--max-new-tokens", "40", "--threshold", "0.95") == 0
    return path


def test_a_recorded_reply_is_the_models_own(demo: TorchEngine, file: Path) -> None:
    trace = open_trace(file)
    header = trace.header
    assert header.messages[-1].content == PROMPT
    assert (header.model_name, header.capture, header.top_k) == ("demo", "top-k", 16)
    assert header.settings is not None
    assert header.settings.threshold == 0.95
    assert header.stats is not None
    assert len(trace) == header.stats.forwards
    kept = demo.decode(trace.ids[trace.steps_of(0)[-1]].tolist())
    assert header.text[:10] in kept


def test_show_prints_the_figures_a_step_and_a_position(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = open_trace(file)
    capsys.readouterr()
    assert main(["show", str(file)]) == 0
    out = capsys.readouterr().out
    assert "Tokens per second" in out
    assert trace.header.text.splitlines()[0] in out
    assert len(out.splitlines()) > len(trace) + 15
    assert main(["show", str(file), "--step", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + trace.ids.shape[1]
    start = int(trace.block_start[-1])
    assert main(["show", str(file), "--position", str(start)]) == 0
    steps = len(trace.steps_of(int(trace.block[-1])))
    assert len(capsys.readouterr().out.splitlines()) == 1 + steps
    assert main(["show", str(file), "--position", str(start), "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["position"] for cell in cells] == [start] * steps
    assert cells[-1]["id"] == int(trace.ids[-1, 0])
    assert len(cells[-1]["candidates"]) == 16


def test_a_place_that_is_not_there_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--step", "900"],
        ["--position", "900"],
        ["--step", "0", "--position", "40"],
    ):
        capsys.readouterr()
        assert main(["show", str(file), *arguments]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "trace.not_there" in err
        assert "Choose one from" in err


def first_open(trace: Trace) -> tuple[int, int]:
    """A step, and a position that is open before it."""
    for row in range(1, len(trace)):
        if trace.step[row]:
            opened = (trace.state[row - 1] == 1).nonzero()[0]
            return row, int(trace.block_start[row]) + int(opened[-1])
    raise AssertionError("every block took one step")


def test_a_fork_puts_bans_and_changes_what_it_was_told(
    run: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = open_trace(file)
    row, position = first_open(parent)
    texts = list(parent.header.pieces.values())
    text = next(t for t in texts if t.strip().isalpha() and texts.count(t) == 1)
    word = next(token for token, piece in parent.header.pieces.items() if piece == text)
    target = tmp_path / "b.dntrace"
    arguments = ["--put", f"{position}={word}", "--ban", "any=3", "--threshold", "0.9"]
    assert run("fork", file, "--step", row, *arguments, "-o", target) == 0
    assert "Fork of" in capsys.readouterr().out
    fork = open_trace(target)
    assert fork.header.parent is not None
    change = fork.header.parent.change
    assert change.force == ((position, word),)
    assert change.ban == ((-1, 3),)
    assert change.settings is not None
    assert change.settings.threshold == 0.9
    assert fork.ids[row, position - int(fork.block_start[row])] == word
    by_text = tmp_path / "c.dntrace"
    assert run("fork", file, "--step", row, "--put", f"{position}={text}", "-o", by_text) == 0
    found = open_trace(by_text).header.parent
    assert found is not None
    assert found.change.force == ((position, word),)


def test_an_unchanged_fork_says_so(
    run: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fork", file, "--step", "1", "-o", tmp_path / "b.dntrace") == 0
    assert "at step 1: unchanged" in capsys.readouterr().out
    parent, fork = open_trace(file), open_trace(tmp_path / "b.dntrace")
    assert (fork.ids == parent.ids).all()
    assert fork.header.text == parent.header.text


def test_an_attribution_is_printed_from_the_strongest_on(
    run: Any, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row, position = first_open(open_trace(file))
    capsys.readouterr()
    asked = ("attribute", file, "--step", row, "--position", position, "--reach", "block")
    assert run(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["position"] == position
    assert len(found["positions"]) == len(found["effect"]) > 0
    assert run(*asked) == 0
    lines = capsys.readouterr().out.splitlines()
    strongest = max(range(len(found["effect"])), key=lambda n: abs(found["effect"][n]))
    assert f" {found['positions'][strongest]}  " in lines[2]
    assert "█" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-o", "a.txt"], "trace.output"),
        (["-o", "nowhere/b.dntrace"], "trace.output"),
        (["-o", "b.dntrace", "--put", "12"], "trace.usage"),
        (["-o", "b.dntrace", "--put", "x=1"], "trace.usage"),
        (["-o", "b.dntrace", "--put", "any=1"], "trace.usage"),
        (["-o", "b.dntrace", "--ban", "40=no such token"], "trace.usage"),
        (["-o", "b.dntrace", "--put", "2=1"], "trace.fork_change"),
        (["-o", "b.dntrace", "--threshold", "7"], "request.settings"),
        (["-o", "b.dntrace", "--candidates", "90"], "request.capture"),
        (["-o", "b.dntrace", "--positions", "a,b"], "trace.usage"),
        (["-o", "a.dntrace", "--force"], "trace.output"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    run: Any,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: str,
) -> None:
    monkeypatch.chdir(file.parent)
    before = file.read_bytes()
    assert run("fork", "a.dntrace", "--step", "1", *arguments) == 1
    assert f"[{code}]" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["a.dntrace"]


def test_a_trace_that_is_there_is_replaced_only_when_told(run: Any, file: Path) -> None:
    before = file.read_bytes()
    short = ("--max-new-tokens", "8")
    assert run("record", "hello", "-o", file, *short) == 1
    assert file.read_bytes() == before
    assert run("record", "hello", "-o", file, *short, "--force") == 0
    assert open_trace(file).header.messages[-1].content == "hello"


def test_what_was_recorded_before_a_stop_is_kept(
    run: Any, demo: TorchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = demo.generate

    def interrupted(request: Any, stop: threading.Event) -> Iterator[Any]:
        for event in generate(request, stop):
            yield event
            if isinstance(event, StepTaken):
                stop.set()

    monkeypatch.setattr(demo, "generate", interrupted)
    path = tmp_path / "a.dntrace"
    asked = ("--threshold", "1", "--max-new-tokens", "40")
    assert run("record", PROMPT, "-o", path, *asked) == 130
    assert open_trace(path).header.reason == "stopped"


def test_a_stopped_question_ends_as_a_shell_expects(
    run: Any,
    demo: TorchEngine,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    attribute = demo.attribute

    def interrupted(*args: Any) -> Any:
        args[-1].set()
        return attribute(*args)

    monkeypatch.setattr(demo, "attribute", interrupted)
    row, position = first_open(open_trace(file))
    assert run("attribute", file, "--step", row, "--position", position) == 130
    assert "stopped" in capsys.readouterr().err


def test_a_full_disk_costs_the_file_but_not_the_text(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.trace.file.os.replace", full)
    asked = ("--max-new-tokens", "24")
    assert run("record", "What is 17 times 24?", "-o", tmp_path / "a.dntrace", *asked) == 1
    out, err = capsys.readouterr()
    assert "17" in out
    assert "[trace.not_written]" in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.dntrace").write_bytes(b"hello")
    assert main(["show", str(tmp_path / "a.dntrace")]) == 1
    assert "[trace.not_a_trace]" in capsys.readouterr().err
