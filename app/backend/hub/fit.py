"""Will it fit, and how fast could a step be: sums, with every term shown.

It knows the rule by which the engine places weights (a test holds the two together), asks the
engine how long a context would be, and counts bytes of real headers. It refuses to forbid: a
verdict is advice. What was not measured is None, with the reason. `fit` imports torch when it is
called, as the engine's own sums do: not for the GUI's thread.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.backend.hub.examine import Examined
from app.backend.hub.support import Layout
from app.backend.transfer.download import MARGIN
from engine.hardware import HardwareReport

LOAD_SHARE = 0.75  # of free memory that weights may take, as `engine.loading.choose_placement`
LOGITS_AT_ONCE = 3  # float32 copies of a block's logits that are alive together: an estimate


class Verdict(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second that memory gives to a reader, as measured; None with the reason."""

    bytes_per_second: float | None
    reason: str = ""


NOT_MEASURED = Bandwidth(None, "The memory bandwidth of this machine has not been measured.")


@dataclass(frozen=True)
class Machine:
    """What is free now. device: "cpu" or "cuda:0", as the engine would choose; memory: free bytes
    there, None = not reported. disk: free where models go, None = the folder is absent."""

    device: str
    device_name: str
    memory: int | None
    ram: int
    disk: int | None
    bandwidth: Bandwidth = NOT_MEASURED


@dataclass(frozen=True)
class Fit:
    """The sum. Bytes. stored: weight files. weights: the same in memory. kv: the cache for
    `context` positions; workspace: an estimate of what a step needs beside. affordable: positions
    the engine would give the cache. step_bytes: what one step reads. download: still to fetch.
    sentences: all of it for a person, the verdict's reason first."""

    verdict: Verdict
    device: str
    stored: int
    weights: int
    kv: int | None
    workspace: int | None
    memory: int | None
    context: int
    affordable: int | None
    download: int
    disk: int | None
    disk_verdict: Verdict
    step_bytes: int | None
    ms_per_step: float | None
    ms_reason: str
    sentences: tuple[str, ...]

    @property
    def disk_sentence(self) -> str:
        """The one that says what the download needs and what is free."""
        return self.sentences[2 if self.kv is None else 3]


def machine_now(report: HardwareReport, models: Path, bandwidth: Bandwidth) -> Machine:
    """From `engine.hardware.describe_hardware()`, which imports torch, and the disk of `models`."""
    try:
        disk = shutil.disk_usage(models).free
    except OSError:
        disk = None
    on_gpu = report.gpu is not None and report.device != "cpu"
    gpu = report.gpu if on_gpu else None
    return Machine(
        device=report.device,
        device_name=gpu.name if gpu is not None else report.cpu_name,
        memory=gpu.free_bytes if gpu is not None else report.ram_free,
        ram=report.ram_free,
        disk=disk,
        bandwidth=bandwidth,
    )


def fit(model: Examined, machine: Machine, context: int, already: int = 0) -> Fit:
    """context: prompt and answer together, in tokens; at most what the model allows is reckoned
    with. already: bytes an earlier download left."""
    download = max(0, model.download_bytes - already)
    disk_verdict, disk_words = _disk(download, machine.disk)
    layout = model.layout
    if layout is None:
        return _without_layout(model, machine, context, download, disk_verdict, disk_words)
    context = min(context, _longest(layout))
    expanded = _is_expanded(layout, machine)
    weights = layout.spec.table.parameters * 4 if expanded else model.weight_bytes
    kv, workspace, affordable = _positions(layout, machine, weights, context, expanded)
    verdict, why = _memory(model, machine, weights + kv + workspace, context, affordable)
    step = step_bytes(layout, context, 4 if expanded else None)
    ms, ms_reason = _milliseconds(step, machine)
    where = f"on {machine.device_name}"
    sentences = (
        why,
        f"Weights: {_gb(weights)} {where}"
        + (" (expanded to float32, as the CPU computes)." if expanded else "."),
        f"Cache: {_gb(kv)} for {context} tokens. Workspace: about {_gb(workspace)} (estimated).",
        disk_words,
        f"A step reads {_gb(step)}: " + (f"about {ms:.1f} ms." if ms is not None else ms_reason),
    )
    return Fit(
        verdict=verdict,
        device=machine.device,
        stored=model.weight_bytes,
        weights=weights,
        kv=kv,
        workspace=workspace,
        memory=machine.memory,
        context=context,
        affordable=affordable,
        download=download,
        disk=machine.disk,
        disk_verdict=disk_verdict,
        step_bytes=step,
        ms_per_step=ms,
        ms_reason=ms_reason,
        sentences=sentences,
    )


def step_bytes(layout: Layout, context: int, size: int | None) -> int:
    """Bytes that one denoising step of one block reads at the end of `context`: every weight but
    the rows of the embedding that are not looked up, the experts that a block is expected to choose
    when routing is even (E (1 - (1 - k/E)^block)), and the cache. size: bytes a number takes in
    memory, None = as stored."""
    spec, inventory = layout.spec, layout.inventory
    table = spec.table
    experts = table.experts
    tied = all(rows != spec.vocab_size for rows, _ in table.linears.values())
    expert_names = tuple(f"{experts.base(n)}." for n in experts.layers) if experts else ()
    dense = routed = 0
    for module, matrix in inventory.matrices.items():
        rows, cols = matrix.weight.shape
        numbers = rows * cols * (1 if matrix.form == "dense" else 2)
        count = matrix.nbytes if size is None else numbers * size
        if module == table.embedding and not tied:
            continue
        if module.startswith(expert_names):
            routed += count
        else:
            dense += count
    for stack in inventory.stacks.values():
        for entry in stack.values():
            numbers = entry.shape[0] * entry.shape[1] * entry.shape[2]
            routed += entry.nbytes if size is None else numbers * size
    dense += sum(entry.nbytes for entry in inventory.tensors.values())
    touched = 0.0
    if experts is not None and experts.count:
        touched = 1 - (1 - experts.per_token / experts.count) ** spec.block_length
    kv = spec.kv_numbers * (size or 2) * (context + spec.block_length)
    return int(dense + routed * touched + kv)


def _longest(layout: Layout) -> int:
    """The model's own limit, in whole blocks where it has blocks (as `engine.capacity`)."""
    limit, block = layout.spec.max_position_embeddings, layout.spec.block_length
    return limit if layout.spec.whole_sequence else limit // block * block


def _is_expanded(layout: Layout, machine: Machine) -> bool:
    """Whether weights become float32, as on a CPU with room for it."""
    if machine.device != "cpu":
        return False
    room = None if machine.memory is None else int(machine.memory * LOAD_SHARE)
    return room is None or 4 * layout.spec.table.parameters <= room


def _positions(
    layout: Layout, machine: Machine, weights: int, context: int, expanded: bool
) -> tuple[int, int, int | None]:
    """Bytes of the cache and of the workspace for a context, and the longest context that the
    engine would allow (None where free memory is not known)."""
    import torch

    from engine.capacity import bytes_per_position, context_of
    from engine.loading import Placement

    spec = layout.spec
    dtype = torch.float32 if expanded else torch.bfloat16
    placement = Placement(torch.device(machine.device), dtype, expanded, "")
    per_position = bytes_per_position(spec, placement)
    affordable = None
    if machine.memory is not None:
        affordable = context_of(spec, placement, max(0, machine.memory - weights))
    if spec.whole_sequence:  # no cache, but the logits of every position
        return 0, per_position * context, affordable
    block = 4 * LOGITS_AT_ONCE * spec.block_length * spec.vocab_size
    return per_position * (context + spec.block_length), block, affordable


def _memory(
    model: Examined, machine: Machine, needed: int, context: int, affordable: int | None
) -> tuple[Verdict, str]:
    free = machine.memory
    if free is None:
        return Verdict.UNKNOWN, f"{machine.device_name} does not say how much memory is free."
    room = int(free * LOAD_SHARE)
    if model.weight_bytes > room:
        return Verdict.DOES_NOT_FIT, (
            f"Does not fit: {_gb(model.weight_bytes)} of weights, and the engine fills at most"
            f" {_gb(room)} of the {_gb(free)} that are free on {machine.device_name}."
        )
    if needed > free:
        return Verdict.DOES_NOT_FIT, (
            f"Does not fit: {_gb(needed)} with {context} tokens, and {_gb(free)} are free on"
            f" {machine.device_name}."
        )
    if affordable is not None and affordable < context:
        return Verdict.TIGHT, (
            f"Tight: it loads, but memory is left for {affordable} tokens instead of {context}."
        )
    if needed > room:
        return Verdict.TIGHT, f"Tight: {_gb(needed)} of the {_gb(free)} that are free."
    return Verdict.FITS, f"Fits: {_gb(needed)} of the {_gb(free)} that are free."


def _disk(download: int, free: int | None) -> tuple[Verdict, str]:
    if free is None:
        return Verdict.UNKNOWN, "The models folder is not there, so its disk is not known."
    words = f"Disk: {_gb(download)} to download, {_gb(free)} free."
    if download and download + MARGIN > free:
        return Verdict.DOES_NOT_FIT, f"{words} That is too little."
    if download + 10 * MARGIN > free:
        return Verdict.TIGHT, words
    return Verdict.FITS, words


def _milliseconds(step: int, machine: Machine) -> tuple[float | None, str]:
    speed = machine.bandwidth.bytes_per_second
    if speed is None:
        return None, machine.bandwidth.reason
    how = f"bytes read in a step / {speed / 1e9:.0f} GB/s as measured; a floor, not a promise"
    return step / speed * 1000, how


def _without_layout(
    model: Examined,
    machine: Machine,
    context: int,
    download: int,
    disk_verdict: Verdict,
    disk_words: str,
) -> Fit:
    """For a model that the engine would refuse: only its size against what is free is known."""
    free = machine.memory
    verdict = Verdict.UNKNOWN
    words = f"{_gb(model.weight_bytes)} of weights"
    if free is not None:
        words += f"; {_gb(free)} are free on {machine.device_name}"
        if model.weight_bytes > free * LOAD_SHARE:
            verdict = Verdict.DOES_NOT_FIT
    reason = "How a step reads it is not known, since the engine does not run it."
    return Fit(
        verdict=verdict,
        device=machine.device,
        stored=model.weight_bytes,
        weights=model.weight_bytes,
        kv=None,
        workspace=None,
        memory=free,
        context=context,
        affordable=None,
        download=download,
        disk=machine.disk,
        disk_verdict=disk_verdict,
        step_bytes=None,
        ms_per_step=None,
        ms_reason=reason,
        sentences=(f"{words}.", model.support.reason, disk_words),
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
