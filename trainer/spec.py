"""What a training run is asked to do, as one value and one JSON file: the seam between the window,
the terminal and the trainer.

Knows fields, presets and their checks. Imports no torch: a window reads and writes specs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.errors import RequestError
from trainer.orl.recipe import Recipe
from trainer.strict_json import read, write
from trainer.verify.verifier_spec import VerifierSpec

VERSION = 1


@dataclass(frozen=True)
class DataSpec:
    """files: prompts, with reference answers where there are any. columns: which column is what,
    where a file's own names do not say (roles: `trainer.data.readers.ColumnMapping`).
    validation: share of the tasks that is never trained on. replay: share of an update's prompts
    that are ones the start model answers rightly, with its own answers, against forgetting.
    bad_rows: rows that are no examples are left out and counted, or stop the run before it
    begins."""

    files: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    validation: float = 0.1
    replay: float = 0.0
    bad_rows: Literal["skip", "stop"] = "skip"


@dataclass(frozen=True)
class Guard:
    """every: updates between measurements on validation tasks (and between checkpoints); tasks: at
    most so many are asked. drop: how far accuracy may fall below the start's, in shares, before the
    run stops and keeps the best."""

    every: int = 10
    tasks: int = 128
    drop: float = 0.05


@dataclass(frozen=True)
class TrainSpec:
    """model: folder of the model to start from. updates: of the whole run, teaching included. seed:
    of everything drawn. device: None = the first GPU, else the CPU."""

    model: str
    data: DataSpec
    verifier: VerifierSpec
    recipe: Recipe = field(default_factory=Recipe)
    updates: int = 100
    seed: int = 1
    device: str | None = None
    guard: Guard = field(default_factory=Guard)
    version: int = VERSION

    def __post_init__(self) -> None:
        checks = (
            ("model", bool(self.model.strip()), "a folder"),
            ("data.files", bool(self.data.files), "at least one file"),
            ("data.validation", 0.0 <= self.data.validation < 1.0, "0 to below 1"),
            ("data.replay", 0.0 <= self.data.replay < 1.0, "0 to below 1"),
            ("updates", self.updates >= 1, "at least 1"),
            ("updates", self.updates >= self.recipe.teach, "no less than the recipe's teach"),
            ("seed", 0 <= self.seed < 2**31, "0 to 2^31 - 1"),
            ("guard.every", self.guard.every >= 1, "at least 1"),
            ("guard.tasks", self.guard.tasks >= 1, "at least 1"),
            ("guard.drop", 0.0 < self.guard.drop <= 1.0, "above 0, at most 1"),
        )
        for name, good, wanted in checks:
            if not good:
                raise RequestError(
                    "spec.value", f"The run's '{name}' must be {wanted}.", "Change it."
                )

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(write(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "spec") -> TrainSpec:
        """Raises RequestError `spec.json`, `spec.version`, `spec.field`, `spec.value` or
        `recipe.value`, which name what is wrong."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise RequestError(
                "spec.json", f"{where} is not JSON: {error}.", "Correct the file, or save it anew."
            ) from error
        if isinstance(value, Mapping) and value.get("version", VERSION) != VERSION:
            raise RequestError(
                "spec.version",
                f"{where} is of version {value['version']!r:.20}; this program reads {VERSION}.",
                "Open it with the program that wrote it, or write a new one.",
            )
        return read(cls, value, where)

    @classmethod
    def open(cls, path: Path) -> TrainSpec:
        """Reads a file. Raises RequestError `spec.unreadable`, or as `from_json`."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                "spec.unreadable", f"{path} cannot be read: {error}.", "Name another file."
            ) from error
        return cls.from_json(text, path.name)


@dataclass(frozen=True)
class Preset:
    """title and summary: for people; recipe: changes to the default one; updates: of the run.
    teach_share: of them, that teach where teaching is asked for."""

    title: str
    summary: str
    updates: int
    recipe: Mapping[str, Any]
    teach_share: float = 0.5

    def teach(self, wanted: bool) -> int:
        """Updates that teach."""
        return round(self.updates * self.teach_share) if wanted else 0


PRESETS: dict[str, Preset] = {
    "small": Preset(
        "Small",
        "For the demo model and models of its size: every weight trains. Minutes without a GPU.",
        90,
        {
            "trains": "all",
            "muon": 0.002,
            "learning_rate": 0.001,
            "rollouts": 16,
            "rows": 16,
            "window": 12,
            "micro_blocks": 48,
            "max_new_tokens": 96,
            "residual": False,
            "teach_rate": 1.0,
            "warmup": 2,
            "decay": 0.05,
        },
        0.85,
    ),
    "quick": Preset(
        "Quick",
        "A look at whether this data can be learnt at all.",
        20,
        {"rollouts": 64, "rows": 32},
    ),
    "balanced": Preset(
        "Balanced", "What most runs should take.", 100, {"rollouts": 256, "rows": 128}
    ),
    "thorough": Preset(
        "Thorough", "Longer and gentler: overnight.", 400, {"rollouts": 512, "learning_rate": 5e-5}
    ),
}


def preset_recipe(name: str, teach: bool, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a preset; teach: its share of the updates teaches reference answers first.
    Raises KeyError for a preset there is not, RequestError `recipe.value`."""
    preset = PRESETS[name]
    listed = {k: tuple(v) if isinstance(v, list) else v for k, v in (changes or {}).items()}
    given = {**preset.recipe, "teach": preset.teach(teach), **listed}
    return dataclasses.replace(Recipe(), **given)
