"""Runs as the window sees them: real child processes, found again by their folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.backend.training import EventTail, TrainingRuns, spawn, trainer_command
from engine.errors import RuntimeFailure
from trainer.events import TrainEvent
from trainer.run_dir import RunDir
from trainer.spec import DataSpec, TrainSpec
from trainer.verify.verifier_spec import VerifierSpec

SPEC = TrainSpec("model", DataSpec(("x.jsonl",)), VerifierSpec("demo"))
CHILD = """
import sys, time
from pathlib import Path
from trainer.run_dir import RunDir
from trainer.spec import TrainSpec
from trainer.events import TrainEvent
target = Path(sys.argv[sys.argv.index("--out") + 1])
run = RunDir.create(target, TrainSpec.open(Path(sys.argv[2])), {})
for update in range(1, 400):
    run.append(TrainEvent("metrics", update, {"loss": 1.0 / update}))
    run.beat("running", update)
    if run.asked() == "stop":
        run.beat("stopped", update, "It was stopped.")
        break
    time.sleep(0.02)
"""


def _scripted(code: str):
    def start(command: Sequence[str], errors: Path) -> subprocess.Popen[bytes]:
        arguments = list(command)[list(command).index("trainer") + 1 :]
        return spawn([sys.executable, "-c", code, *arguments], errors)

    return start


def _wait(what, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_is_followed_stopped_and_found_again(tmp_path: Path) -> None:
    runs = TrainingRuns(tmp_path, _scripted(CHILD))
    target = runs.begin(SPEC, "mine")
    assert runs.status(target).state == "running"
    tail = EventTail(target / "events.jsonl")
    events: list[TrainEvent] = []
    _wait(lambda: (events.extend(tail.new()), len(events) >= 3)[1])
    again = TrainingRuns(tmp_path)  # another window, which did not start it
    assert again.status(target).state == "running"
    assert [run.path for run in again.runs()] == [target]
    with pytest.raises(RuntimeFailure, match=r"training\.alive"):
        again.forget(target)
    RunDir.open(target).ask("stop")
    _wait(lambda: again.status(target).state == "stopped")
    events.extend(tail.new())
    assert [e.update for e in events] == list(range(1, len(events) + 1))
    aside = again.forget(target)
    assert not target.exists()
    assert (aside / "spec.json").exists()
    again.bring_back(aside, target)
    assert again.status(target).state == "stopped"
    aside = again.forget(target)
    RunDir.create(target, SPEC, {})
    with pytest.raises(RuntimeFailure, match=r"training\.taken"):
        again.bring_back(aside, target)
    again.empty_aside()
    assert not aside.exists()
    assert target.exists()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is posix's")
def test_a_child_that_is_killed_is_called_crashed(tmp_path: Path) -> None:
    runs = TrainingRuns(tmp_path, _scripted(CHILD))
    target = runs.begin(SPEC, "mine")
    _wait(lambda: (target / "alive.json").exists())
    pid = runs.status(target).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: runs.status(target).state == "crashed")


def test_a_child_that_fails_at_once_is_said_in_its_own_words(tmp_path: Path) -> None:
    code = "import sys; sys.exit('[data.nothing] There is nothing to train on. Give rows.')"
    runs = TrainingRuns(tmp_path, _scripted(code))
    target = runs.begin(SPEC, "mine")
    _wait(lambda: runs.status(target).state == "failed")
    assert "data.nothing" in runs.status(target).reason


def test_two_runs_of_a_name_get_folders_of_their_own(tmp_path: Path) -> None:
    runs = TrainingRuns(tmp_path, _scripted("pass"))
    assert [runs.begin(SPEC, "a").name, runs.begin(SPEC, "a").name] == ["a", "a-2"]


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeFailure, match=r"training\.not_started"):
        TrainingRuns(tmp_path / "file" / "runs").begin(SPEC, "a")


def test_a_line_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.new() == []
    whole = TrainEvent("notice", 1, {"text": "a"}).line().encode()
    path.write_bytes(whole + whole[:9])
    assert [e.data["text"] for e in tail.new()] == ["a"]
    path.write_bytes(whole * 2)
    assert len(tail.new()) == 1
    path.write_bytes(whole)
    assert len(tail.new()) == 1


def test_the_frozen_app_calls_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainer_command(["run"])[1:] == ["-m", "trainer", "run"]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert trainer_command(["run"])[1:] == ["--trainer", "run"]
