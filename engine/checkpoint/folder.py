"""A Hugging Face style model folder on disk: which files it has and what its JSON says.

Knows file names, JSON and the shard index. Refuses pickles and anything that is not what it claims
to be. Knows nothing of model families or of tensor values.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.refusals import (
    DOWNLOAD_AGAIN,
    plain_file_size,
    printable,
    refuse,
    unreadable,
)
from engine.checkpoint.tensor_file import TensorEntry, TensorFile
from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
JSON_LIMIT = 256_000_000  # bytes; the largest tokenizer.json in use has some 50 MB
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICK_FOLDER = "Choose the folder that holds config.json and the .safetensors files of a model."

JsonObject = dict[str, object]


@dataclass(frozen=True)
class ModelFolder:
    """The JSON of a folder, read. `file_names` are all plain files directly inside."""

    path: Path
    config: JsonObject
    generation_config: JsonObject
    hf_quant_config: JsonObject
    file_names: tuple[str, ...]
    notes: tuple[str, ...]


def read_folder(path: str | os.PathLike[str]) -> ModelFolder:
    """Reads the folder's JSON files. Raises CheckpointError when the path is not a readable model
    folder.
    """
    if not os.fspath(path):  # to pathlib that is the current folder
        raise refuse("checkpoint.not_found", "The path is empty.", _PICK_FOLDER)
    folder = Path(path)
    names = _file_names(folder)
    if "config.json" not in names:
        raise _no_config(folder, names)
    notes: list[str] = []
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles and any(name.endswith(".safetensors") for name in names):
        notes.append(f"Ignored {', '.join(pickles)}: pickle files are never opened.")
    return ModelFolder(
        path=folder,
        config=read_json(folder / "config.json"),
        generation_config=_optional_json(folder, names, "generation_config.json"),
        hf_quant_config=_optional_json(folder, names, "hf_quant_config.json"),
        file_names=names,
        notes=tuple(notes),
    )


def read_json(path: Path) -> JsonObject:
    """A JSON object from a file. Raises CheckpointError naming the file."""
    size = plain_file_size(path)
    if size > JSON_LIMIT:
        raise refuse(
            "checkpoint.file_too_large",
            f"{path.name} has {size} bytes; a model's JSON file has at most {JSON_LIMIT}.",
            DOWNLOAD_AGAIN,
            file=path.name,
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path.name, error) from error
    if not raw:
        raise refuse(
            "checkpoint.empty_file", f"{path.name} is empty.", DOWNLOAD_AGAIN, file=path.name
        )
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise refuse(
            "checkpoint.json_invalid",
            f"{path.name} is not valid JSON ({printable(str(error))}).",
            DOWNLOAD_AGAIN,
            file=path.name,
        ) from error
    if not isinstance(value, dict):
        raise refuse(
            "checkpoint.json_invalid",
            f"{path.name} does not hold a JSON object.",
            DOWNLOAD_AGAIN,
            file=path.name,
        )
    return value


class TensorFiles:
    """All weight files of a folder, open, with one table of their tensors."""

    def __init__(self, folder: ModelFolder) -> None:
        """Opens every shard and cross-checks the index. Raises CheckpointError; nothing stays open
        then.
        """
        self.files: dict[str, TensorFile] = {}
        self.entries: dict[str, TensorEntry] = {}
        weight_map = _weight_map(folder)
        try:
            for name in _shard_names(folder, weight_map):
                self._open(folder.path / name)
            if weight_map is not None:
                self._check_index(weight_map)
        except BaseException:
            self.close()
            raise

    @property
    def total_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files.values())

    def of(self, entry: TensorEntry) -> TensorFile:
        return self.files[entry.file]

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def _open(self, path: Path) -> None:
        file = self.files[path.name] = TensorFile(path)
        for name, entry in file.entries.items():
            if name in self.entries:
                raise refuse(
                    "checkpoint.duplicate_tensor",
                    f"{path.name}: tensor {name} is also in {self.entries[name].file}.",
                    DOWNLOAD_AGAIN,
                    file=path.name,
                    item=name,
                )
            self.entries[name] = entry

    def _check_index(self, weight_map: dict[str, str]) -> None:
        for name, shard in weight_map.items():
            entry = self.entries.get(name)
            if entry is None or entry.file != shard:
                found = f"; it is in {entry.file}" if entry else ""
                raise refuse(
                    "checkpoint.index_disagrees",
                    f"{INDEX}: {name} should be in {shard}, which does not hold it{found}.",
                    "Download the index and that file again.",
                    file=INDEX,
                    item=name,
                )
        for name, entry in self.entries.items():
            if name not in weight_map:
                raise refuse(
                    "checkpoint.index_disagrees",
                    f"{entry.file} holds {name}, which {INDEX} does not list.",
                    "Download the index and that file again.",
                    file=entry.file,
                    item=name,
                )


def _file_names(folder: Path) -> tuple[str, ...]:
    shown = printable(str(folder))
    try:
        if not folder.exists():
            raise refuse(
                "checkpoint.not_found",
                f"There is no folder {shown}.",
                "Check the path, or choose the folder again.",
                file=shown,
            )
        if not folder.is_dir():
            raise refuse(
                "checkpoint.not_a_folder",
                f"{shown} is a file; a model is a folder.",
                _PICK_FOLDER,
                file=shown,
            )
        return tuple(sorted(item.name for item in folder.iterdir() if not item.is_dir()))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(shown, error) from error


def _no_config(folder: Path, names: tuple[str, ...]) -> CheckpointError:
    shown = printable(str(folder))
    if not names:
        return refuse(
            "checkpoint.empty_folder",
            f"The folder {shown} holds no files.",
            _PICK_FOLDER,
            file=shown,
        )
    if any(name.endswith(".gguf") for name in names):
        problem = f"{shown} has no config.json; GGUF files are not read here."
    else:
        problem = f"{shown} has no config.json."
    return refuse("checkpoint.no_config", problem, _PICK_FOLDER, file="config.json")


def _optional_json(folder: Path, names: tuple[str, ...], name: str) -> JsonObject:
    return read_json(folder / name) if name in names else {}


def _weight_map(folder: ModelFolder) -> dict[str, str] | None:
    """The shard index's tensor -> file table, or None when the folder has no index."""
    if INDEX not in folder.file_names:
        return None
    weight_map = read_json(folder.path / INDEX).get("weight_map")
    problem = None
    if not isinstance(weight_map, dict) or not weight_map:
        problem = "holds no table of tensors"
    else:
        for value in weight_map.values():
            # A shard is a file of this folder: a path could lead anywhere.
            if not isinstance(value, str) or Path(value).name != value or "\\" in value:
                problem = f"names {printable(repr(value))}, which is not a file name"
            elif not value.endswith(".safetensors"):
                problem = f"names {printable(value)}; only safetensors files are read"
    if problem is not None:
        raise refuse(
            "checkpoint.index_invalid",
            f"{INDEX}: weight_map {problem}.",
            DOWNLOAD_AGAIN,
            file=INDEX,
            item="weight_map",
        )
    assert isinstance(weight_map, dict)
    return weight_map


def _shard_names(folder: ModelFolder, weight_map: dict[str, str] | None) -> list[str]:
    found = [name for name in folder.file_names if name.endswith(".safetensors")]
    if weight_map is None:
        return _without_index(folder, found)
    listed = sorted(set(weight_map.values()))
    for name in listed:
        if name not in found:
            raise refuse(
                "checkpoint.missing_shard",
                f"{INDEX}: weight_map names {printable(name)}, which is not in the folder.",
                f"Download {printable(name)} into the folder.",
                file=INDEX,
                item="weight_map",
            )
    for name in found:
        if name not in listed:
            raise refuse(
                "checkpoint.unlisted_shard",
                f"{name} is in the folder, but {INDEX} does not list it.",
                "Remove the file if it belongs to another model, or download the index again.",
                file=name,
            )
    return listed


def _without_index(folder: ModelFolder, found: list[str]) -> list[str]:
    if len(found) == 1 and "-of-" not in found[0]:
        return found
    if found:
        raise refuse(
            "checkpoint.missing_index",
            f"{folder.path.name} has {len(found)} weight file(s) of a set ({found[0]}, ...) and no"
            f" {INDEX} to say what belongs together.",
            f"Download {INDEX} into the folder.",
            file=INDEX,
        )
    pickles = [name for name in folder.file_names if name.endswith(_PICKLES)]
    if pickles:
        raise refuse(
            "checkpoint.pickle",
            f"{pickles[0]} is a pickle file. Opening one can run any program hidden in it, so it is"
            " never read.",
            "Use a checkpoint saved as safetensors.",
            file=pickles[0],
        )
    raise refuse(
        "checkpoint.no_weights",
        f"{printable(str(folder.path))} has a config.json but no model.safetensors.",
        "Download the weights into the folder.",
        file="model.safetensors",
    )
