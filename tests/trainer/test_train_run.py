"""A run through every kind of end: finished, stopped, killed, collapsed, no memory, no disk."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scripted_learner import ScriptedLearner

from engine.errors import RequestError, RuntimeFailure
from engine.types import Message
from trainer import run_dir
from trainer.data.task import Task
from trainer.events import TrainEvent, read_event
from trainer.loop import Run, Tasks, split_tasks
from trainer.orl.recipe import Recipe
from trainer.run_dir import RunDir
from trainer.spec import PRESETS, DataSpec, Guard, TrainSpec, preset_recipe
from trainer.verify.verifier_spec import VerifierSpec


def _tasks(count: int = 20) -> list[Task]:
    return [
        Task(f"t{n}", (Message("user", f"ask {n}"),), f"answer {n}", f"skill {n % 3}")
        for n in range(count)
    ]


def _spec(**changes) -> TrainSpec:
    recipe = Recipe(rollouts=4, rows=4, teach=changes.pop("teach", 0))
    given = {"updates": 12, "guard": Guard(every=3, tasks=4), "recipe": recipe, **changes}
    return TrainSpec("model", DataSpec(("x.jsonl",), replay=0.25), VerifierSpec("demo"), **given)


def _folder(path: Path, spec: TrainSpec) -> RunDir:
    return RunDir.create(path, spec, {"base": 1})


def _split(spec: TrainSpec) -> Tasks:
    return split_tasks(_tasks(), 0.2, spec.seed)


def _whole(path: Path, spec: TrainSpec) -> ScriptedLearner:
    learner = ScriptedLearner()
    assert Run(_folder(path, spec), learner, _split(spec)).go() == "finished"
    return learner


def _last(folder: RunDir) -> torch.Tensor:
    checkpoint = folder.checkpoint("last")
    assert checkpoint is not None
    return load_file(checkpoint.tensors)["weights"]


def test_a_run_teaches_first_and_says_when_it_turns_to_speed(tmp_path: Path) -> None:
    spec = _spec(teach=5)
    learner = ScriptedLearner()
    events: list[TrainEvent] = []
    Run(_folder(tmp_path / "r", spec), learner, _split(spec), events.append).go()
    assert [kind for kind, _ in learner.calls] == ["teach"] * 5 + ["update"] * 7
    said = [e.data["text"] for e in events if e.kind == "notice"]
    assert any("teaching are done" in text for text in said)


def test_teaching_ends_early_once_answers_verify(tmp_path: Path) -> None:
    spec = _spec(teach=9)
    learner = ScriptedLearner(accuracy=lambda done: 0.95 if done >= 3 else 0.1)
    Run(_folder(tmp_path / "r", spec), learner, _split(spec)).go()
    assert [kind for kind, _ in learner.calls][:4] == ["teach"] * 3 + ["update"]


def test_a_run_killed_at_any_moment_continues_as_if_it_had_not_been(tmp_path: Path) -> None:
    spec = _spec(updates=18, teach=6)
    wanted = _whole(tmp_path / "whole", spec)
    folder = _folder(tmp_path / "cut", spec)
    rng = random.Random(5)
    kills = 0
    while kills < 10:
        pid = os.fork()
        if pid == 0:
            learner = ScriptedLearner(pause=0.01)
            replay = folder.replay()
            tasks = _split(spec)
            tasks = Tasks(tasks.train, tasks.valid, replay)
            Run(folder, learner, tasks).go(resume=True)
            os._exit(0)
        time.sleep(rng.uniform(0.0, 0.25))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        assert all(read_event(event.line()) is not None for event in folder.events())
    learner = ScriptedLearner()
    tasks = _split(spec)
    Run(folder, learner, Tasks(tasks.train, tasks.valid, folder.replay())).go(resume=True)
    assert torch.equal(_last(folder), wanted.weights)
    assert folder.status().state == "finished"


def test_a_process_that_is_gone_is_called_crashed_whatever_was_written(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "r", _spec())
    assert folder.status().state == "stopped"
    pid = os.fork()
    if pid == 0:
        folder.beat("running", 3)
        os._exit(0)
    os.waitpid(pid, 0)
    status = folder.status()
    assert (status.state, status.update) == ("crashed", 3)


def test_a_living_process_without_a_heartbeat_is_called_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "r", _spec())
    folder.beat("running", 1)
    assert folder.status().state == "running"
    monkeypatch.setattr(run_dir, "STALE", -1.0)
    assert folder.status().state == "crashed"


def test_stop_ends_after_the_update_and_keeps_what_was_learnt(tmp_path: Path) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)

    def stop_at_five(event: TrainEvent) -> None:
        if event.kind == "metrics" and event.update == 5:
            folder.ask("stop")

    learner = ScriptedLearner()
    assert Run(folder, learner, _split(spec), stop_at_five).go() == "stopped"
    assert learner.done == 5
    assert torch.equal(_last(folder), learner.weights)
    assert folder.status().state == "stopped"


def test_pause_waits_saved_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.loop.PAUSED", 0.01)
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    states: list[str] = []

    def watch(event: TrainEvent) -> None:
        if event.kind == "metrics" and event.update == 4:
            folder.ask("pause")
        if event.kind == "state":
            states.append(str(event.data["state"]))
            if states[-1] == "paused":
                assert folder.checkpoint("last").meta["update"] == 4  # type: ignore[union-attr]
                folder.ask("resume")

    assert Run(folder, ScriptedLearner(), _split(spec), watch).go() == "finished"
    assert states[-3:] == ["paused", "running", "finished"]


def test_memory_that_runs_out_halves_the_forward_and_takes_the_update_again(tmp_path: Path) -> None:
    spec = _spec()
    wanted = _whole(tmp_path / "whole", spec)
    learner = ScriptedLearner()
    learner.fail = [torch.OutOfMemoryError(), torch.OutOfMemoryError()]
    events: list[TrainEvent] = []
    Run(_folder(tmp_path / "r", spec), learner, _split(spec), events.append).go()
    assert learner.micro_batch == 2
    assert torch.equal(learner.weights, wanted.weights)
    assert sum("halved" in e.data.get("text", "") for e in events if e.kind == "notice") == 2


def test_memory_that_never_suffices_ends_with_a_typed_error(tmp_path: Path) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    learner = ScriptedLearner()
    learner.fail = [torch.OutOfMemoryError() for _ in range(9)]
    with pytest.raises(RuntimeFailure, match=r"train\.out_of_memory"):
        Run(folder, learner, _split(spec)).go()
    assert folder.status().state == "failed"


def test_a_run_that_gets_faster_and_wrong_is_stopped_with_its_best_kept(tmp_path: Path) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    learner = ScriptedLearner(
        accuracy=lambda done: 0.8 if done < 7 else 0.6, tpf=lambda done: 2.0 + done
    )
    with pytest.raises(RuntimeFailure, match=r"train\.collapse"):
        Run(folder, learner, _split(spec)).go()
    best = folder.checkpoint("best")
    assert best is not None
    assert best.meta["update"] == 6


def test_numbers_that_are_not_finite_end_a_run_and_the_last_good_state_stays(
    tmp_path: Path,
) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    learner = ScriptedLearner()

    def spoil(event: TrainEvent) -> None:
        if event.kind == "metrics" and event.update == 4:
            learner.fail = [RuntimeFailure("train.nonfinite", "not finite", "lower it")]

    with pytest.raises(RuntimeFailure, match="not finite"):
        Run(folder, learner, _split(spec), spoil).go()
    assert folder.checkpoint("last").meta["update"] == 3  # type: ignore[union-attr]
    assert folder.status().state == "failed"


def test_a_full_disk_is_said_and_costs_nothing_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    events: list[TrainEvent] = []

    def fill(event: TrainEvent) -> None:
        events.append(event)
        if event.kind == "metrics" and event.update == 5:

            def full(path: Path) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(run_dir, "sync_file", full)

    with pytest.raises(RuntimeFailure, match=r"train\.disk"):
        Run(folder, ScriptedLearner(), _split(spec), fill).go()
    assert folder.checkpoint("last").meta["update"] == 3  # type: ignore[union-attr]
    assert [e.data["code"] for e in events if e.kind == "error"] == ["train.disk"]


def test_a_torn_last_line_costs_itself_alone(tmp_path: Path) -> None:
    spec = _spec()
    folder = _folder(tmp_path / "r", spec)
    folder.append(TrainEvent("notice", 1, {"text": "kept"}))
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "notice", "upd')
    folder.mend()
    folder.append(TrainEvent("notice", 2, {"text": "after"}))
    assert [event.data["text"] for event in folder.events()] == ["kept", "after"]


def test_a_figure_that_is_not_finite_is_written_as_not_known() -> None:
    line = TrainEvent("metrics", 1, {"loss": float("nan")}).line()
    assert json.loads(line)["data"] == {"loss": None}


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    _folder(tmp_path / "r", _spec())
    with pytest.raises(RequestError, match=r"run\.exists"):
        _folder(tmp_path / "r", _spec())
    with pytest.raises(RequestError, match=r"run\.none"):
        RunDir.open(tmp_path)


def test_every_skill_and_the_replayed_prompts_are_drawn(tmp_path: Path) -> None:
    spec = _spec(recipe=Recipe(rollouts=24, rows=4, group=1))
    learner = ScriptedLearner()
    tasks = _split(spec)
    Run(_folder(tmp_path / "r", spec), learner, tasks).go()
    replayed = {task.id for task in list(tasks.train)[:2]}
    by_id = {task.id: task.skill for task in tasks.train}
    for _, drawn in learner.calls:
        assert set(drawn[-6:]) <= replayed
        counts = [sum(by_id[name] == skill for name in drawn[:-6]) for skill in set(by_id.values())]
        assert counts == [6, 6, 6]


def test_a_spec_reads_back_as_it_was_and_names_a_wrong_field() -> None:
    spec = _spec(teach=3)
    assert TrainSpec.from_json(spec.to_json()) == spec
    for text, field in (
        ('{"model": 3}', "spec.model"),
        ('{"model": "m", "verifier": {"kind": "x"}, "data": {"files": []}}', "data.files"),
        (spec.to_json().replace('"updates": 12', '"updates": 12.5'), "spec.updates"),
        (spec.to_json().replace('"rho"', '"rhoo"'), "spec.recipe.rhoo"),
        (spec.to_json().replace('"version": 1', '"version": 7'), "version 7"),
    ):
        with pytest.raises(RequestError, match=field.replace(".", r"\.")):
            TrainSpec.from_json(text)


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("teach", [False, True])
def test_every_preset_is_a_run(name: str, teach: bool) -> None:
    spec = replace(_spec(), recipe=preset_recipe(name, teach), updates=PRESETS[name].updates)
    assert spec.updates == PRESETS[name].updates
    assert (spec.recipe.teach > 0) == teach
