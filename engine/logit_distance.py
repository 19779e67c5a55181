"""How far a copy's predictions are from the original's: both models take the same first step of an
answer, and the distributions they give are compared.

No model is whole in memory: a module's weights are read when it is called and dropped when it
returns (the embedding and vectors stay). That is slow for an answer and right for one step. Knows
no family: the step is the one that the engine runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from engine.capacity import room_for
from engine.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.quantiser.memory import peak_memory
from engine.checkpoint.quantiser.report import LogitDistance
from engine.compose import make_program
from engine.decoding.rules import RuleOptions
from engine.errors import RuntimeFailure
from engine.loading import Placement, empty_model, place_module
from engine.models.backbone import AnyBackbone
from engine.models.experts import Experts
from engine.models.layers import Linear
from engine.protocol import ProgressCallback
from engine.runtime.eager import EagerRuntime
from engine.runtime.pieces import make_pieces
from engine.runtime.rows import Row
from engine.runtime.shifted import ShiftedBlockProgram
from engine.tokenizer import ChatTokenizer
from engine.types import LoadProgress, Message

PROMPT = "Explain in two sentences why the sky is blue, then write a Python function that adds."
_RANDOM_PROMPT = 48  # tokens, for a folder without a tokenizer
_ANSWER = 32  # positions compared where prompt and answer are one canvas
_STREAMED = (Linear, Experts)
_PLACE = Placement(torch.device("cpu"), torch.float32, True, "one module at a time")


def compare_logits(
    original: str | os.PathLike[str],
    copy: str | os.PathLike[str],
    prompt: str = PROMPT,
    *,
    progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> LogitDistance:
    """Compares the first denoising step of an answer to `prompt`, computed in float32 on the CPU.
    A folder without a tokenizer gets random token ids instead, from a fixed seed.

    Raises RuntimeFailure `compare.no_memory`, `compare.stopped`, and whatever opening the folders
    or encoding the prompt raises.
    """
    first = _open(original)
    try:
        ids, words = _prompt_ids(first, prompt)
        wanted = _first_step(first, ids, progress, stop, "Asking the original")
    finally:
        first.release()
    second = _open(copy)
    try:
        given = _first_step(second, ids, progress, stop, "Asking the copy")
    finally:
        second.release()
    return _distance(wanted, given, first.spec.mask_token_id, words)


def _open(folder: str | os.PathLike[str]) -> Checkpoint:
    """Without another pass over the values: both folders have just been checked."""
    return open_checkpoint(folder, check_values_now=False)


def _prompt_ids(checkpoint: Checkpoint, prompt: str) -> tuple[list[int], str]:
    """Token ids of the prompt, and what it was in words."""
    if checkpoint.has_tokenizer:
        tokenizer = ChatTokenizer.open(Path(checkpoint.path))
        return tokenizer.encode_chat([Message("user", prompt)]), prompt
    spec = checkpoint.spec
    drawn = torch.randint(spec.vocab_size, (_RANDOM_PROMPT,), generator=_seeded()).tolist()
    special = {*spec.stop_ids, spec.mask_token_id}
    return [token for token in drawn if token not in special], "random token ids"


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@torch.inference_mode()
def _first_step(
    checkpoint: Checkpoint,
    ids: Sequence[int],
    progress: ProgressCallback | None,
    stop: threading.Event | None,
    phase: str,
) -> Tensor:
    """Logits float32 [N, V] of the answer's positions in the first step."""
    spec = checkpoint.spec
    model = empty_model(checkpoint)
    _check_memory(model)
    _stream(model, checkpoint, progress, stop, phase)
    answer = _ANSWER if spec.whole_sequence else spec.block_length
    capacity = room_for(spec, len(ids), answer, spec.max_position_embeddings)
    program = make_program(model, 1, capacity, RuleOptions(), torch.float32)
    if isinstance(program, ShiftedBlockProgram) and len(ids) % spec.block_length == 0:
        ids = ids[1:]  # a whole block is opened with a token in which the two models may differ
    seen = _record(model)
    runtime = EagerRuntime(make_pieces(program, stop_after_block=True))
    length = capacity if spec.whole_sequence else spec.block_length
    row = Row(ids, answer, spec.defaults, length, frozenset(spec.stop_ids), spec.on_grid)
    runtime.prefill([row])
    seen.clear()
    next(iter(runtime.run([row], record=False)))
    known = len(ids) - row.first_block_start  # positions of the block that the prompt fills
    return seen[0][0, known : known + answer]


def _record(model: AnyBackbone) -> list[Tensor]:
    """From now on the model's logits [B, T, V] are kept, in the order they are asked for."""
    seen: list[Tensor] = []
    compute = model.logits

    def recorded(hidden: Tensor) -> Tensor:
        logits = compute(hidden)
        seen.append(logits.clone())  # the step writes into what it is given
        return logits

    model.logits = recorded
    return seen


def _stream(
    model: AnyBackbone,
    checkpoint: Checkpoint,
    progress: ProgressCallback | None,
    stop: threading.Event | None,
    phase: str,
) -> None:
    """Makes large modules read their weights when they are called; everything else is put in
    place."""
    modules = [name for name, module in model.named_modules() if isinstance(module, _STREAMED)]
    done: set[str] = set()

    def place(name: str, module: nn.Module, _: object) -> None:
        if stop is not None and stop.is_set():
            raise RuntimeFailure(
                "compare.stopped", "The comparison was stopped.", "Start it again."
            )
        place_module(name, module, checkpoint, _PLACE)
        done.add(name)
        if progress is not None:
            progress(LoadProgress(len(done), len(modules), phase))

    for name, module in model.named_modules():
        if isinstance(module, _STREAMED):
            module.register_forward_pre_hook(partial(place, name))
            module.register_forward_hook(_drop)
        else:
            place_module(name, module, checkpoint, _PLACE)
    model.eval().requires_grad_(False)


def _drop(module: nn.Module, *_: object) -> None:
    for name, value in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(value.to("meta"), requires_grad=False))


def _check_memory(model: AnyBackbone) -> None:
    """What stays, the largest module twice (it is converted), and half a gigabyte to work in."""
    stays, largest = 0, 0
    for module in model.modules():
        own = 4 * sum(value.numel() for value in module.parameters(recurse=False))
        if isinstance(module, _STREAMED):
            largest = max(largest, own)
        else:
            stays += own
    needed, free = stays + 2 * largest + (1 << 29), psutil.virtual_memory().available
    if needed > free:
        raise RuntimeFailure(
            "compare.no_memory",
            f"Comparing takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free.",
            "Close other programs, or leave the comparison out.",
        )


@torch.inference_mode()
def _distance(wanted: Tensor, given: Tensor, mask_id: int | None, words: str) -> LogitDistance:
    """KL divergence of the copy from the original, per position, in nats. The mask is no answer:
    it is left out of both, as it is when the engine decodes."""
    if mask_id is not None:
        for logits in (wanted, given):
            logits[:, mask_id] = float("-inf")
    log_p = wanted.double().log_softmax(-1)
    log_q = given.double().log_softmax(-1)
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
    return LogitDistance(
        prompt=words,
        positions=kl.numel(),
        mean_kl=float(kl.mean()),
        largest_kl=float(kl.max()),
        same_best=float((wanted.argmax(-1) == given.argmax(-1)).double().mean()),
        peak_bytes=peak_memory(),
    )
