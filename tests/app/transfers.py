"""What the tests of downloads share: quick policies, plans for a test hub, and made-up models."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub_server import Blob, HubServer, Repository

from app.backend.transfer.fetch import Place, Policy
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.http import Source, Timeouts
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.progress import Progress

QUICK = Policy(first_wait=0.001, longest_wait=0.004, timeouts=Timeouts(connect=5, silence=5))
NAME = "someone/LLaDA2.1-tiny"
TOKEN = "hf_thisIsASecretOfTheTest"


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def safetensors(size: int, seed: int = 0) -> bytes:
    """A valid file with one BF16 tensor of `size` bytes."""
    entry = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + noise(size, seed)


def model_files(*sizes: int) -> dict[str, Blob]:
    """Small JSON files, some that nobody needs, and a safetensors file for each size."""
    names = [f"model-{i + 1:05}-of-{len(sizes):05}.safetensors" for i in range(len(sizes))]
    shards = [safetensors(size, seed) for seed, size in enumerate(sizes)]
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    files = {
        "config.json": Blob(b'{"model_type": "llada2_moe"}'),
        "tokenizer_config.json": Blob(b"{}"),
        "added_tokens.json": Blob(b""),  # a file of no bytes is a file
        "README.md": Blob("# Ein Modell \u2713\n".encode()),
        "LICENSE": Blob(b"Do as you like."),
        "modeling_llada.py": Blob(b"raise SystemExit('run')"),
        "pytorch_model.bin": Blob(b"\x80\x04.", lfs=True),
        "figures/plot.png": Blob(b"PNG"),
    }
    if len(names) == 1:
        return {**files, "model.safetensors": Blob(shards[0], lfs=True)}
    files["model.safetensors.index.json"] = Blob(json.dumps(index).encode())
    return {**files, **{n: Blob(d, lfs=True) for n, d in zip(names, shards, strict=True)}}


def remote(path: str, blob: Blob) -> RemoteFile:
    """The file as the hub lists it."""
    if blob.lfs:
        return RemoteFile(path, blob.size, sha256=blob.sha256)
    return RemoteFile(path, blob.size, git_sha1=blob.oid)


@contextmanager
def serving(*sizes: int, **options: object) -> Iterator[tuple[HubServer, Repository]]:
    """A hub with one model."""
    repository = Repository(NAME, model_files(*sizes), **options)  # pyright: ignore[reportArgumentType]
    with HubServer(repository) as hub:
        yield hub, repository


def plan_of(hub: HubServer, repository: Repository, *paths: str) -> DownloadPlan:
    """A plan for some files, or for all that a model needs."""
    unneeded = ("modeling_llada.py", "pytorch_model.bin", "figures/plot.png")
    chosen = paths or tuple(path for path in repository.files if path not in unneeded)
    files = tuple(remote(path, repository.files[path]) for path in chosen)
    return DownloadPlan(repository.name, repository.commit, hub.endpoint, files)


def place_of(hub: HubServer, repository: Repository, token: str | None = None) -> Place:
    def locate(file: RemoteFile) -> Source:
        base = f"{hub.endpoint}/{repository.name}/resolve/{repository.commit}"
        return Source(f"{base}/{file.path}", token)

    return Place(repository.name, hub.endpoint, locate)


class Seen(Progress):
    """A listener that keeps what it was told."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.waits: list[tuple[str, float]] = []
        self.from_network = 0
        self.from_disk = 0

    def kept(self, count: int) -> None:
        self.from_disk += count
        super().kept(count)

    def received(self, count: int) -> None:
        self.from_network += count
        super().received(count)

    def waiting(self, reason: str, seconds: float) -> None:
        self.waits.append((reason, seconds))
        super().waiting(reason, seconds)


def leftovers(folder: Path) -> list[str]:
    """Names of unfinished things in a folder."""
    return sorted(p.name for p in folder.iterdir() if ".part" in p.name)
