"""The k largest logits of each row, k small, with their probabilities.

Knows searching in two passes (chunks of the vocabulary, then the chunks' winners); ties fall to the
lower id. What the logits mean is `sampler.py`.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_TOP = 16
TOP_CHUNK = 2048  # logits one program searches


def best_of_rows(
    logits: Tensor,
    log_norm: Tensor,
    candidate_values: Tensor,
    candidate_ids: Tensor,
    top_ids: Tensor,
    top_prob: Tensor,
) -> None:
    """logits float32 [R, V], log_norm float32 [R] -> top_ids int32 and top_prob float32 [R, k],
    best first.

    candidate_values float32 and candidate_ids int32 [R, V / TOP_CHUNK rounded up, k] are
    workspaces.
    """
    rows, vocab = logits.shape
    top = top_ids.shape[1]
    chunks = triton.cdiv(vocab, TOP_CHUNK)
    candidates = (candidate_values, candidate_ids)
    _top_kernel[(rows, chunks)](logits, *candidates, vocab, chunks, CHUNK=TOP_CHUNK, TOP=top)
    _top_merge_kernel[(rows,)](
        *candidates,
        log_norm,
        top_ids,
        top_prob,
        chunks * top,
        CANDIDATES=triton.next_power_of_2(chunks * top),
        TOP=top,
    )


class BestOfRows:
    """`best_of_rows` with workspaces of its own, made when they are first needed: logits float32
    [R, V], log_norm float32 [R] -> ids int32 and probabilities float32 [R, top], the same memory at
    every call. The torch reference is `engine.runtime.watch.best_of`."""

    def __init__(self) -> None:
        self._spaces: dict[tuple[int, int, int], tuple[Tensor, ...]] = {}

    def __call__(self, logits: Tensor, log_norm: Tensor, top: int) -> tuple[Tensor, Tensor]:
        rows, vocab = logits.shape
        key = (rows, vocab, top)
        if key not in self._spaces:
            chunked = (rows, triton.cdiv(vocab, TOP_CHUNK), top)
            found = (rows, top)

            def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
                return torch.empty(shape, dtype=dtype, device=logits.device)

            self._spaces[key] = (
                empty(chunked, torch.float32),
                empty(chunked, torch.int32),
                empty(found, torch.int32),
                empty(found, torch.float32),
            )
        values, candidates, ids, shares = self._spaces[key]
        best_of_rows(logits.contiguous(), log_norm, values, candidates, ids, shares)
        return ids, shares


@triton.jit
def _take_best(values, ids):
    """The best remaining value, the lowest id that has it, and the values without it."""
    top = tl.max(values, axis=0)
    winner = tl.min(tl.where(values == top, ids, 2147483647), axis=0)
    return top, winner, tl.where(ids == winner, float("-inf"), values)


@triton.jit
def _top_kernel(logits, values_out, ids_out, vocab, chunks, CHUNK: tl.constexpr, TOP: tl.constexpr):
    """The best TOP of one chunk of one row."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row.to(tl.int64) * vocab + ids, mask=ids < vocab, other=float("-inf"))
    at = (row * chunks + chunk) * TOP
    for n in tl.static_range(TOP):
        top, winner, values = _take_best(values, ids)
        tl.store(values_out + at + n, top)
        tl.store(ids_out + at + n, winner)


@triton.jit
def _top_merge_kernel(
    values_in,
    ids_in,
    log_norm,
    top_ids,
    top_prob,
    count,
    CANDIDATES: tl.constexpr,
    TOP: tl.constexpr,
):
    """The best TOP of one row's candidates, best first."""
    row = tl.program_id(0)
    c = tl.arange(0, CANDIDATES)
    values = tl.load(values_in + row * count + c, mask=c < count, other=float("-inf"))
    ids = tl.load(ids_in + row * count + c, mask=c < count, other=2147483647)
    norm = tl.load(log_norm + row)
    for n in tl.static_range(TOP):
        top, winner, values = _take_best(values, ids)
        tl.store(top_ids + row * TOP + n, winner)
        tl.store(top_prob + row * TOP + n, tl.exp(top - norm))
