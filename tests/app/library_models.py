"""Models on a disk as downloads and Hugging Face's cache leave them, for the library's tests."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from hub_server import Blob
from transfers import NAME, model_files

from app.backend.library.library import Library
from app.backend.library.scan import LocalModel
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.plan import DownloadPlan, write_manifest


def put_model(folder: Path, *, commit: str = "a" * 40, name: str = NAME) -> DownloadPlan:
    """A finished download, as the queue leaves it."""
    folder.mkdir(parents=True)
    files = []
    for path, blob in model_files(4000).items():
        if path.endswith((".py", ".bin")) or "/" in path:
            continue
        (folder / path).write_bytes(blob.read(0, blob.size))
        sha256 = blob.sha256 if blob.lfs else None
        files.append(RemoteFile(path, blob.size, sha256, None if blob.lfs else blob.oid))
    plan = DownloadPlan(name, commit, "https://huggingface.co", tuple(files), "mit")
    write_manifest(folder, plan)
    return plan


def put_cached(cache: Path, commit: str, *, weights: bytes, main: bool = False) -> Path:
    """A version in a cache laid out as huggingface_hub does; the snapshot's folder."""
    repository = cache / "models--someone--cached"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / commit
    blobs.mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    contents = {"config.json": b'{"model_type": "llada2_moe"}', "model.safetensors": weights}
    for name, data in contents.items():
        lfs = name.endswith(".safetensors")
        blob = Blob(data, lfs=lfs)
        (blobs / blob.etag).write_bytes(data)
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / blob.etag)
    if main:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    return snapshot


def only(library: Library) -> LocalModel:
    (model,) = library.scan().models
    return model


def fill_cache(
    cache: Path, endpoint: str, patterns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the real tools leave of the tests' model in a cache."""
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread of their progress bars
    huggingface_hub.snapshot_download(
        NAME, cache_dir=cache, endpoint=endpoint, token=False, allow_patterns=patterns
    )
