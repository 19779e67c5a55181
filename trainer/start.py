"""Puts a run together: data, verifier, learner, folder; and refuses what cannot train.

Knows how the parts meet. Each part's rules are in its own module.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.errors import RequestError
from trainer.data.encoding import ModelEncoder, prompts_that_fit
from trainer.data.readers import load_tasks
from trainer.events import TrainEvent
from trainer.loop import LearnerLike, Report, Run, Tasks, split_tasks, with_replay
from trainer.orl.learner import Learner
from trainer.orl.peers import ALONE, Peers
from trainer.parallel import on_all
from trainer.run_dir import RunDir, file_hash
from trainer.spec import TrainSpec
from trainer.verify.probe import probe
from trainer.verify.registry import make_verifier

Make = Callable[[TrainSpec], LearnerLike]
TRIED = 20  # rows that a verifier is tried on before a run


def start(spec: TrainSpec, path: Path, report: Report | None = None) -> str:
    """A new run in `path`, on all processes where torchrun started several. Returns how it ended;
    raises UnblurError."""
    return on_all(lambda make: _start(spec, path, report, make), make_learner)


def _start(spec: TrainSpec, path: Path, report: Report | None, make: Make) -> str:
    tasks, manifest = prepare(spec)
    # Before minutes are spent on loading: a verifier that cannot tell right from wrong.
    probe(make_verifier(spec.verifier), tasks.train[:TRIED]).refuse_useless()
    learner = make(spec)
    folder = RunDir.create(path, spec, manifest)
    if manifest["bad_count"]:
        text = f"{manifest['bad_count']} rows were left out. The first: {manifest['bad_rows'][0]}."
        event = TrainEvent("notice", 0, {"text": text})
        folder.append(event)
        if report is not None:
            report(event)
    return Run(folder, learner, tasks, report).go()


def resume(path: Path, report: Report | None = None) -> str:
    """Goes on with a run that was cut or stopped. Raises RequestError `run.changed` when its data
    or its base model are not what they were, `run.alive` when it is running."""
    return on_all(lambda make: _resume(path, report, make), make_learner)


def _resume(path: Path, report: Report | None, make: Make) -> str:
    folder = RunDir.open(path)
    spec, status = folder.spec, folder.status()
    if status.state in ("running", "paused"):
        raise RequestError(
            "run.alive", f"This run is going on (process {status.pid}).", "Wait, or stop it first."
        )
    tasks, manifest = prepare(spec)
    kept = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    changed = [name for name in ("data", "base") if kept.get(name) != manifest[name]]
    if changed:
        raise RequestError(
            "run.changed",
            f"The {' and the '.join(changed)} of this run changed since it began.",
            "Put them back, or start a new run.",
        )
    replay = folder.replay()
    tasks = tasks if replay is None else with_replay(tasks, replay)
    return Run(folder, make(spec), tasks, report).go(resume=True)


def make_learner(spec: TrainSpec, peers: Peers = ALONE) -> Learner:
    """Loads the model. Raises CheckpointError, RequestError or RuntimeFailure."""
    verifier = make_verifier(spec.verifier)
    folder, device = Path(spec.model), spec.device
    return Learner(folder, spec.recipe, verifier, spec.seed, spec.updates, device, peers)


def prepare(spec: TrainSpec) -> tuple[Tasks, dict[str, Any]]:
    """The tasks of a spec, split, and the manifest of a run on them. Raises RequestError
    `data.too_few` or as `load_tasks`."""
    loaded = load_tasks(spec.data.files, spec.data.columns, spec.data.bad_rows)
    encoder = ModelEncoder.open(Path(spec.model))
    limit = spec.recipe.window * encoder.spec.block_length
    fit, unfit = prompts_that_fit(encoder, loaded.tasks, limit)
    tasks = split_tasks(fit, spec.data.validation, spec.seed)
    if not tasks.train:
        raise RequestError(
            "data.too_few",
            f"{len(fit)} rows leave nothing to train on beside validation; the prompts of "
            f"{len(unfit)} more do not fit.",
            "Give more rows, a smaller validation share, or a longer window.",
        )
    manifest: dict[str, Any] = {
        "created": time.time(),
        "program": importlib.metadata.version("unblur"),
        "torch": torch.__version__,
        "machine": platform.platform(),
        "base": {"path": str(Path(spec.model).resolve()), "hashes": _base_hashes(Path(spec.model))},
        "data": {name: file_hash(Path(name)) for name in spec.data.files},
        "rows": len(fit),
        "bad_rows": [str(row) for row in loaded.bad],
        "bad_count": loaded.bad_count,
        "left_out": loaded.left_out,
        "unfit": [str(row) for row in unfit[:1000]],
        "unfit_count": len(unfit),
        "validation": len(tasks.valid),
    }
    return tasks, json.loads(json.dumps(manifest))


def _base_hashes(folder: Path) -> dict[str, Any]:
    """Enough to tell one model from another at once: the configuration's hash and sizes."""
    config = folder / "config.json"
    if not config.is_file():
        raise RequestError(
            "train.no_model", f"{folder} holds no model.", "Name a model folder to start from."
        )
    sizes = {p.name: p.stat().st_size for p in sorted(folder.glob("*.safetensors"))}
    return {"config": file_hash(config), "sizes": sizes}
