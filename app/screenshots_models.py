"""The Models page in its states, for pictures: a made-up library, queue, machine and hub.

It knows which models the pictures show. Their sizes follow from true shapes and the verdicts from
the app's own sums, for a GPU that does not exist; nothing here is a measurement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from app.backend.hub.access import HubError, refused, unreachable
from app.backend.hub.client import Hub, HubListing, HubModel
from app.backend.hub.examine import Examined
from app.backend.hub.fit import Bandwidth, Machine, fit
from app.backend.hub.ref import ModelRef
from app.backend.hub.support import JsonFiles, support_of_config, support_of_model
from app.backend.hub.token import TokenStore
from app.backend.judge import CONTEXTS, Judged, MachineReport, plan_of
from app.backend.library.folders import Folder, Kind
from app.backend.library.library import Library, LibraryView
from app.backend.library.scan import FolderView, LocalModel, Presence
from app.backend.library.trash import Deleted
from app.backend.library.verify import FileCheck, FileState, Report
from app.backend.model_services import ModelServices
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.queue import DownloadQueue, DownloadView, Problem, State
from app.backend.transfer.stop import Stop
from app.models.copying import CopyReport
from app.models.library import Check, Shelf
from app.models.model_states import Checking
from app.models.model_store import ModelStore
from engine.checkpoint.tensor_file import TensorEntry
from engine.models.llada2_spec import LLaDA2Spec
from engine.protocol import ProgressCallback

HUB = "https://huggingface.co"
ROOT = Path("/data/Unblur models")
GATED = "google/diffusiongemma-26B-A4B-it"
MACHINE = Machine(
    device="cuda:0",
    device_name="Example GPU, 32 GB",
    memory=31_400_000_000,
    ram=48_000_000_000,
    disk=412_000_000_000,
    bandwidth=Bandwidth(1.4e12),
)
MINI = {
    "model_type": "llada2_moe",
    "architectures": ["LLaDA2MoeModelLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 157184,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
    "max_position_embeddings": 32768,
}
CARD = """# LLaDA2.1-mini

A diffusion language model with a mixture of experts.

| Part | Number |
|---|---|
| Layers | 20 |
| Experts | 256, 8 of them for each token |

```python
threshold = 0.7
```

See the [report](https://example.org/report).
"""
REPORT = """Layout      NVFP4 (modelopt), weights only
Quantised   routed experts: 9728 matrices
Left as is  120 x: not chosen
Left as is  20 x: routers stay as they are: near ties would flip"""


class PictureHub(Hub):
    """Never reaches for the network."""

    def search(self, words: str, limit: int = 30) -> tuple[HubModel, ...]:
        names = ("inclusionAI/LLaDA2.1-mini", "someone/LLaDA2.1-mini-NVFP4")
        found = [_hub_model(name, "llada2_moe") for name in names]
        return (*found, replace(_hub_model(GATED, "diffusion_gemma"), gated=True))

    def card_text(self, listing: HubListing, stop: Stop | None = None) -> str:
        return CARD


def store_for_pictures(folder: Path, online: bool = True) -> ModelStore:
    """Opens at once, in a folder of its own. online: whether the hub answers."""

    def make(on_change: Callable[[], None]) -> ModelServices:
        tokens = TokenStore(folder / "token.json", HUB, keyring=lambda: None)
        return ModelServices(
            tokens=tokens,
            hub=PictureHub(lambda: None, HUB),
            library=Library(folder / "library.json", folder / "models", None),
            queue=DownloadQueue(folder / "downloads.json", lambda _: None, on_change),
            bandwidth_file=folder / "bandwidth.json",
        )

    return ModelStore(
        make,
        judging=_judge if online else _unreachable,
        machine_look=lambda _services: MachineReport(MACHINE, ""),
        copier=_copy,
    )


def show_library(store: ModelStore) -> None:
    """Three folders: one with models, the cache, and one whose drive is not connected."""
    mini = _local("inclusionAI/LLaDA2.1-mini", 32_600_000_000, "bfloat16", 32768)
    small = _local("JetLM/SDAR-4B-Chat", 8_840_000_000, "bfloat16", 32768, "sdar")
    other = _local("someone/Qwen3-4B", 8_060_000_000, "bfloat16", 40960, "qwen3")
    cache = Path("/data/huggingface/hub")
    double = replace(
        _local("JetLM/SDAR-4B-Chat", 8_840_000_000, "bfloat16", 32768, "sdar", "5"),
        path=cache / "models--JetLM--SDAR-4B-Chat" / "snapshots" / ("5" * 40),
        root=cache,
        kind=Kind.CACHE,
    )
    away = Path("/media/Archive/models")
    gone = f"{away} is not there. Its disk may not be connected."
    folders = (
        FolderView(Folder(ROOT, Kind.MODELS, 3), Presence.PRESENT, "", (mini, small, other)),
        FolderView(Folder(cache, Kind.CACHE, 1), Presence.PRESENT, "", (double,)),
        FolderView(Folder(away, Kind.MODELS, 6), Presence.ABSENT, gone),
    )
    library = store.library
    total = sum(model.size for model in (mini, small, other))
    library.shelf = Shelf(
        view=LibraryView(folders),
        deleted=(Deleted("1", "GSAI-ML/LLaDA-8B-Instruct", 16_030_000_000, time.time(), ROOT, ()),),
        used={ROOT: total, cache: double.size},
        total=total + double.size,
        download_to=ROOT,
        free=MACHINE.disk,
    )
    bad = FileCheck(
        "model-00002-of-00002.safetensors",
        FileState.WRONG_BYTES,
        "Its bytes are not those that were published.",
    )
    right = tuple(FileCheck(f"{n}", FileState.RIGHT) for n in range(8))
    checked = Check(Checking.CHECKED, report=Report(small, (bad, *right)))
    library._checks[small.path] = checked
    library.changed.emit()


def show_downloads(store: ModelStore) -> None:
    """One of each: running, waiting for the network, paused, failed, done."""

    def view(name: str, state: State, done: float, total: float, **more: object) -> DownloadView:
        sizes = {"done_bytes": round(done * 1e9), "total_bytes": round(total * 1e9)}
        return DownloadView(name, name, "4f1c2d9a" * 5, ROOT, state, **sizes, **more)  # pyright: ignore[reportArgumentType]

    problem = refused(
        403,
        GATED,
        error_code="GatedRepo",
        said="you are not in the authorized list",
        has_token=True,
    )
    full = Problem(
        "transfer.disk_full",
        "Dream-org/Dream-v0-Instruct-7B needs 15.20 GB more, and 9.70 GB are free on its disk.",
        "Free some space or choose another models folder, then resume. What was received is kept.",
    )
    gated = Problem(problem.code, problem.message, problem.action, problem.link)
    store.downloads.views = (
        view(
            "inclusionAI/LLaDA2.1-mini",
            State.RUNNING,
            12.4,
            32.6,
            bytes_per_second=84.2e6,
            seconds_left=240.0,
        ),
        view(
            "JetLM/SDAR-4B-Chat",
            State.RUNNING,
            1.1,
            8.8,
            bytes_per_second=0.0,
            waiting="The connection was cut. Trying again in 8 s.",
        ),
        view("Gen-Verse/TraDo-4B-Instruct", State.PAUSED, 3.2, 8.1),
        view(GATED, State.FAILED, 0, 51.0, problem=gated),
        view("Dream-org/Dream-v0-Instruct-7B", State.FAILED, 0.3, 15.5, problem=full),
        view(
            "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1",
            State.DONE,
            1.2,
            1.2,
            path=ROOT / "Qwen3-0.6B",
        ),
    )
    store.downloads.changed.emit()


def _local(
    name: str,
    size: int,
    quantisation: str,
    context: int,
    model_type: str = "llada2_moe",
    digit: str = "a",
) -> LocalModel:
    return LocalModel(
        path=ROOT / name,
        root=ROOT,
        kind=Kind.MODELS,
        name=name,
        repo_id=name,
        commit=digit * 40,
        endpoint=HUB,
        licence="apache-2.0",
        size=size,
        files=(),
        hashes=(),
        support=support_of_config({"model_type": model_type, "architectures": ["X"]}),
        quantisation=quantisation,
        context=context,
    )


def _copy(
    source: Path, target: Path, progress: ProgressCallback, stop: threading.Event
) -> CopyReport:
    summary = (
        "32.60 GB became 10.10 GB (3.2 times smaller).",
        "Relative error of the 9,728 matrices together: 0.0950.",
        "Predictions were not compared: Comparing takes 6.1 GB, and 4.0 GB are free.",
    )
    return CopyReport(target, REPORT, summary)


def _unreachable(services: ModelServices, ref: ModelRef, stop: Stop) -> Judged:
    raise unreachable(HUB, "name resolution")


def _judge(services: ModelServices, ref: ModelRef, stop: Stop) -> Judged:
    """Models of LLaDA2-mini's shapes are judged, in NVFP4 where the name says so."""
    if ref.repo_id.startswith("google/"):
        raise refused(401, ref.repo_id, error_code="GatedRepo", has_token=False)
    if "mini" not in ref.repo_id:
        raise HubError(
            "hub.busy", "The hub cannot answer now (status 503).", "Try again in a minute.", HUB
        )
    found = _examined(ref.repo_id, packed=ref.repo_id.endswith("-NVFP4"))
    return Judged(
        listing=found.listing,
        plan=plan_of(found, HUB),
        root=ROOT,
        support=found.support,
        quantisation=found.quantisation,
        weight_bytes=found.weight_bytes,
        context=found.context,
        parameters=found.parameters,
        fits={context: fit(found, MACHINE, context) for context in CONTEXTS},
    )


def _hub_model(name: str, model_type: str) -> HubModel:
    return HubModel(
        repo_id=name,
        commit="4f1c2d9a" * 5,
        licence="apache-2.0",
        gated=False,
        private=False,
        downloads=None,
        parameters=None,
        updated="",
        tags=(),
        support=support_of_config({"model_type": model_type, "architectures": ["X"]}),
        endpoint=HUB,
    )


@cache
def _examined(name: str, packed: bool) -> Examined:
    config = MINI
    files = JsonFiles(config, {}, {}, {})
    entries = _entries(packed)
    support, layout = support_of_model(
        name.rpartition("/")[2], files, entries, ["model.safetensors"]
    )
    size = sum(entry.nbytes for entry in entries.values())
    weights = RemoteFile("model.safetensors", size, sha256="0" * 64)
    model = _hub_model(name, "llada2_moe")
    return Examined(
        listing=HubListing(model, (weights,)),
        files=(weights,),
        json=files,
        support=support,
        layout=layout,
        weight_bytes=size,
        quantisation="NVFP4 (ModelOpt)" if packed else "bfloat16",
        context=32768,
        parameters=layout.spec.table.parameters if layout is not None else None,
    )


def _entries(packed: bool) -> dict[str, TensorEntry]:
    """A header as such a file has it. packed: the experts in NVFP4."""
    table = LLaDA2Spec.from_config(MINI, {}).table
    entries: dict[str, TensorEntry] = {}
    position = 0

    def add(name: str, dtype: str, shape: tuple[int, ...], width: int) -> None:
        nonlocal position
        count = width
        for length in shape:
            count *= length
        entries[name] = TensorEntry(
            name, dtype, shape, position, position + count, "model.safetensors"
        )
        position += count

    for name, (rows, cols) in table.linears.items():
        if packed and ".experts." in name:
            add(f"{name}.weight", "U8", (rows, cols // 2), 1)
            add(f"{name}.weight_scale", "F8_E4M3", (rows, cols // 16), 1)
            add(f"{name}.weight_scale_2", "F32", (), 4)
        else:
            add(f"{name}.weight", "BF16", (rows, cols), 2)
    for name, shape in table.tensors.items():
        add(name, "BF16", shape, 2)
    return entries
