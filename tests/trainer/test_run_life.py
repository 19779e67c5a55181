"""Who works in a run's folder, what others see of it, and what a run does about its disk."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from scripted_learner import ScriptedLearner

from engine.errors import RequestError, RuntimeFailure
from engine.types import Message
from trainer import run_dir, run_life
from trainer.__main__ import main
from trainer.data.task import Task
from trainer.events import TrainEvent
from trainer.loop import Run, Tasks, split_tasks
from trainer.orl.recipe import Recipe
from trainer.run_dir import RunDir
from trainer.run_life import Heart, only_here
from trainer.spec import DataSpec, Guard, TrainSpec
from trainer.verify.verifier_spec import VerifierSpec

SPEC = TrainSpec(
    "model",
    DataSpec(("x.jsonl",)),
    VerifierSpec("demo"),
    Recipe(rollouts=4, rows=4),
    updates=9,
    guard=Guard(every=3, tasks=4),
)


def _tasks(validation: float = 0.2) -> Tasks:
    asked = [Task(f"t{n}", (Message("user", f"ask {n}"),), f"{n}", "s") for n in range(20)]
    return split_tasks(asked, validation, SPEC.seed)


def _folder(path: Path) -> RunDir:
    return RunDir.create(path, SPEC, {"base": 1})


def _said(events: list[TrainEvent], kind: str = "notice") -> str:
    return "\n".join(str(event.data["text"]) for event in events if event.kind == kind)


def test_a_folder_is_one_processs_at_a_time_and_free_when_it_is_killed(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "r")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with only_here(folder):
            os.write(writing, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(reading, 1)
    learner = ScriptedLearner()
    try:
        with pytest.raises(RequestError, match=r"run\.alive"):
            Run(folder, learner, _tasks()).go()
        assert learner.calls == []
        assert list(folder.events()) == []
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert Run(folder, learner, _tasks()).go() == "finished"


def test_an_update_that_takes_long_does_not_look_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_life, "BEAT", 0.02)
    monkeypatch.setattr(run_dir, "STALE", 0.3)
    folder = _folder(tmp_path / "r")
    with Heart(folder) as heart:
        heart.says("running", 4)
        time.sleep(0.6)
        status = folder.status()
    assert (status.state, status.update) == ("running", 4)
    assert "has taken" in status.reason


def test_a_run_is_refused_before_it_begins_where_its_checkpoints_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "r")
    learner = ScriptedLearner()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(RuntimeFailure, match=r"train\.disk.*0\.02 GB"):
        Run(folder, learner, _tasks()).go()
    assert learner.calls == []
    assert folder.status().state == "failed"


def test_an_interrupted_run_is_stopped_not_crashed_and_goes_on_exactly(tmp_path: Path) -> None:
    wanted = ScriptedLearner()
    Run(_folder(tmp_path / "whole"), wanted, _tasks()).go()
    folder = _folder(tmp_path / "cut")
    learner = ScriptedLearner()

    def interrupt(event: TrainEvent) -> None:
        if event.kind == "metrics" and event.update == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(folder, learner, _tasks(), interrupt).go()
    assert folder.status().state == "stopped"
    assert "update 3 is saved" in folder.status().reason
    again = ScriptedLearner()
    assert Run(folder, again, _tasks()).go(resume=True) == "finished"
    assert torch.equal(again.weights, wanted.weights)


def test_an_error_of_the_program_is_recorded_and_not_swallowed(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "r")
    learner = ScriptedLearner()
    learner.fail = [ZeroDivisionError("by zero")]
    with pytest.raises(ZeroDivisionError):
        Run(folder, learner, _tasks()).go()
    errors = [event.data for event in folder.events() if event.kind == "error"]
    assert errors[0]["code"] == "train.unforeseen"
    assert "by zero" in errors[0]["text"]
    assert folder.status().state == "failed"


def test_a_damaged_last_checkpoint_costs_the_updates_since_the_best_and_that_is_said(
    tmp_path: Path,
) -> None:
    folder = _folder(tmp_path / "r")
    learner = ScriptedLearner(accuracy=lambda done: 0.9 if done == 3 else 0.5)
    Run(folder, learner, _tasks()).go()
    last, best = folder.checkpoint("last"), folder.checkpoint("best")
    assert last is not None
    assert best is not None
    assert (last.meta["update"], best.meta["update"]) == (9, 3)
    last.tensors.write_bytes(last.tensors.read_bytes()[:40])
    events: list[TrainEvent] = []
    again = ScriptedLearner()
    assert Run(folder, again, _tasks(), events.append).go(resume=True) == "finished"
    assert len(again.calls) == 6
    assert torch.equal(again.weights, learner.weights)
    assert "goes on from its best" in _said(events)
    (folder.checkpoints / "best").unlink()
    best.tensors.unlink(missing_ok=True)
    (damaged,) = folder.checkpoints.glob("*.safetensors")
    damaged.write_bytes(b"")
    with pytest.raises(RuntimeFailure, match=r"run\.damaged"):
        Run(folder, ScriptedLearner(), _tasks()).go(resume=True)


def test_a_run_without_validation_says_that_nothing_guards_it(tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    Run(_folder(tmp_path / "r"), ScriptedLearner(), _tasks(0.0), events.append).go()
    assert "nothing guards" in _said(events)


def test_a_life_file_of_an_older_program_is_still_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "r")
    folder.beat("running", 2)
    value = json.loads((folder.path / "alive.json").read_text())
    del value["moved"]
    (folder.path / "alive.json").write_text(json.dumps(value))
    assert folder.status().state == "running"


def test_a_run_says_how_long_it_will_take(tmp_path: Path) -> None:
    events: list[TrainEvent] = []
    Run(_folder(tmp_path / "r"), ScriptedLearner(pause=0.02), _tasks(), events.append).go()
    left = [event.data.get("seconds_left") for event in events if event.kind == "metrics"]
    assert left[:2] == [None, None]
    assert left[2] is not None
    assert 0.02 * 6 <= left[2] < 2.0
    assert left[-1] == 0.0


def test_only_a_run_that_goes_on_can_be_told_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path / "r")
    assert main(["runs", "stop", str(folder.path)]) == 1
    assert "[run.not_going]" in capsys.readouterr().err
    assert folder.asked() == ""
    folder.beat("running", 1)
    assert main(["runs", "stop", str(folder.path)]) == 0
    assert folder.asked() == "stop"
    assert main(["runs", "list", str(tmp_path / "none")]) == 0
    assert "There are no runs" in capsys.readouterr().out
