"""What the logits say, straight from the lm_head: best token, its probability, entropy, a sample,
the best k.

Knows `engine.decoding.judge`'s definitions (its reference): entropy in nats of the plain softmax;
banned ids (the mask token) never chosen; at a temperature, inverse-CDF sampling in vocabulary order
with one Philox uniform per (position, step) and confidence under the tempered softmax. The head's
product is cut into tiles of the vocabulary; each tile leaves a few numbers per row, and a second
small kernel merges them in order, so logits need not be written at all at temperature 0. Sampling
and the best k read the logits again, so they are then kept (float32). Top-p is not here: judge does
it.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.best import MAX_TOP, TOP_CHUNK, best_of_rows
from engine.kernels.moe import TRITON_DTYPE

_STATS = 5  # peak, mass, mass-weighted logit, tempered mass, non-finite count


@dataclass(frozen=True)
class HeadPlan:
    """Tile sizes of the head's product: vocabulary rows x columns, warps and pipeline stages."""

    vocab: int = 128
    columns: int = 128
    warps: int = 8
    stages: int = 4


def fit_head_plan(plan: HeadPlan, rows: int, item_bytes: int, shared_limit: int) -> HeadPlan:
    """`plan` with as many pipeline stages as fit in `shared_limit` bytes of shared memory (2 at
    least)."""
    stage = (plan.vocab + _tokens_of(rows)) * plan.columns * item_bytes
    return replace(plan, stages=max(2, min(plan.stages, shared_limit // stage)))


def _tokens_of(rows: int) -> int:
    """Rows one program of the head's product takes."""
    return max(16, min(64, 1 << (rows - 1).bit_length()))


@dataclass(frozen=True, eq=False)
class RowInputs:
    """Device-side settings, [B] each; rows are [B, T] flattened and row r belongs to b = r // T.

    temperature float32 (0 = argmax), seed int64, start int64 (position of row t is start + t), step
    int64. asked int64 [B, T]: ids whose probability is wanted besides the proposal's (what stands
    on the canvas). banned int32 [B, T, N]: ids that are never chosen, -1 = none.
    """

    temperature: Tensor
    seed: Tensor
    start: Tensor
    step: Tensor
    asked: Tensor
    banned: Tensor


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was found, [R] each: proposal int32, confidence float32 of it, asked float32: the
    probability of the asked id, entropy float32 (nats), log_norm float32 of the plain softmax,
    greedy int32, nonfinite int32 (count of logits that were NaN or infinite). top_ids int32 and
    top_prob float32 [R, k]: the best k and their plain probabilities, best first."""

    proposal: Tensor
    confidence: Tensor
    asked: Tensor
    entropy: Tensor
    log_norm: Tensor
    greedy: Tensor
    nonfinite: Tensor
    top_ids: Tensor
    top_prob: Tensor


@dataclass(frozen=True, eq=False)
class SamplerWorkspace:
    """stats float32 [5, tiles, R], best int32 [tiles, R]; logits float32 [R, V] or None when they
    are not kept; candidates: values and ids [R, chunks, k] of the best-k search."""

    stats: Tensor
    best: Tensor
    logits: Tensor | None
    candidate_values: Tensor
    candidate_ids: Tensor


def make_verdict(rows: int, top: int, device: torch.device | str) -> Verdict:
    def ints(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    def floats(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    return Verdict(
        proposal=ints(rows),
        confidence=floats(rows),
        asked=floats(rows),
        entropy=floats(rows),
        log_norm=floats(rows),
        greedy=ints(rows),
        nonfinite=ints(rows),
        top_ids=ints(rows, top),
        top_prob=floats(rows, top),
    )


def make_sampler_workspace(
    rows: int, vocab: int, top: int, keep_logits: bool, plan: HeadPlan, device: torch.device | str
) -> SamplerWorkspace:
    """keep_logits: needed for temperatures above 0 and for top > 0."""
    tiles = triton.cdiv(vocab, plan.vocab)
    chunks = triton.cdiv(vocab, TOP_CHUNK)

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    return SamplerWorkspace(
        stats=floats(_STATS, tiles, rows),
        best=torch.empty((tiles, rows), dtype=torch.int32, device=device),
        logits=floats(rows, vocab) if keep_logits else None,
        candidate_values=floats(rows, chunks, max(top, 1)),
        candidate_ids=torch.empty((rows, chunks, max(top, 1)), dtype=torch.int32, device=device),
    )


def judge_head(
    hidden: Tensor,
    weight: Tensor,
    inputs: RowInputs,
    verdict: Verdict,
    workspace: SamplerWorkspace,
    plan: HeadPlan = HeadPlan(),
) -> None:
    """hidden [R, H] and weight [V, H] of one dtype -> verdict. Sums in float32; float32 inputs are
    multiplied in full.

    verdict.top_ids.shape[1] = k > 0 (at most 16) and temperatures above 0 need workspace.logits.
    """
    rows, size = hidden.shape
    vocab = weight.shape[0]
    tokens = _tokens_of(rows)
    tiles = triton.cdiv(vocab, plan.vocab)
    _head_kernel[(triton.cdiv(rows, tokens), tiles)](
        hidden,
        weight,
        *_settings(inputs, verdict),
        workspace.stats,
        workspace.best,
        workspace.stats if workspace.logits is None else workspace.logits,
        rows,
        rows // inputs.temperature.shape[0],
        vocab,
        SIZE=size,
        BANNED=inputs.banned.shape[-1],
        TOKENS=tokens,
        VOCAB=plan.vocab,
        COLUMNS=min(plan.columns, triton.next_power_of_2(size)),
        DTYPE=TRITON_DTYPE[hidden.dtype],
        KEEP=workspace.logits is not None,
        num_warps=plan.warps,
        num_stages=plan.stages,
    )
    _merge(inputs, verdict, workspace, rows, vocab, plan.vocab)


def judge_logits(
    logits: Tensor,
    inputs: RowInputs,
    verdict: Verdict,
    workspace: SamplerWorkspace,
    plan: HeadPlan = HeadPlan(),
) -> None:
    """The same from logits [R, V] of any float dtype, which are read once (and copied where the
    workspace keeps them)."""
    rows, vocab = logits.shape
    _logits_kernel[(rows, triton.cdiv(vocab, plan.vocab))](
        logits,
        *_settings(inputs, verdict),
        workspace.stats,
        workspace.best,
        workspace.stats if workspace.logits is None else workspace.logits,
        rows,
        rows // inputs.temperature.shape[0],
        vocab,
        BANNED=inputs.banned.shape[-1],
        VOCAB=plan.vocab,
        KEEP=workspace.logits is not None,
        num_warps=4 if plan.vocab >= 512 else 1,
    )
    _merge(inputs, verdict, workspace, rows, vocab, plan.vocab)


def _settings(inputs: RowInputs, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return inputs.temperature, inputs.banned, inputs.asked, verdict.asked


def _merge(
    inputs: RowInputs,
    verdict: Verdict,
    workspace: SamplerWorkspace,
    rows: int,
    vocab: int,
    tile: int,
) -> None:
    tiles = triton.cdiv(vocab, tile)
    keep = workspace.logits is not None
    logits = workspace.stats if workspace.logits is None else workspace.logits
    _merge_kernel[(rows,)](
        workspace.stats,
        workspace.best,
        logits,
        inputs.temperature,
        inputs.seed,
        inputs.start,
        inputs.step,
        verdict.proposal,
        verdict.confidence,
        verdict.asked,
        verdict.entropy,
        verdict.log_norm,
        verdict.greedy,
        verdict.nonfinite,
        rows,
        rows // inputs.temperature.shape[0],
        vocab,
        tiles,
        TILES_2=triton.next_power_of_2(tiles),
        VOCAB=tile,
        SAMPLE=keep,
        num_warps=4,
    )
    top = verdict.top_ids.shape[1]
    if not top:
        return
    if not keep or top > MAX_TOP:
        raise ValueError(f"the best {top} need kept logits and at most {MAX_TOP}")
    candidates = (workspace.candidate_values, workspace.candidate_ids)
    best_of_rows(logits, verdict.log_norm, *candidates, verdict.top_ids, verdict.top_prob)


@triton.jit
def _leave_stats(
    logits,
    ids,
    row,
    live,
    temperature,
    banned,
    asked,
    asked_logit,
    stats,
    best,
    kept,
    rows,
    per_batch,
    vocab,
    tile,
    BANNED: tl.constexpr,
    KEEP: tl.constexpr,
):
    """logits float32 [N, R] of one tile (ids [N], rows [R]) -> the tile's five numbers and its
    argmax for each row."""
    finite = tl.abs(logits) < float("inf")
    real = (ids < vocab)[:, None]
    broken = tl.sum((real & ~finite).to(tl.float32), axis=0)
    logits = tl.where(real & finite, logits, float("-inf"))
    for n in tl.static_range(BANNED):
        ban = tl.load(banned + row * BANNED + n, mask=live, other=-1)
        logits = tl.where(ids[:, None] == ban[None, :], float("-inf"), logits)
    if KEEP:
        where = row[None, :].to(tl.int64) * vocab + ids[:, None]
        tl.store(kept + where, logits, mask=real & live[None, :])
    wanted = tl.load(asked + row, mask=live, other=-1)
    hit = ids[:, None] == wanted[None, :]
    here = tl.sum(hit.to(tl.int32), axis=0) > 0  # in one tile only
    tl.store(asked_logit + row, tl.sum(tl.where(hit, logits, 0.0), axis=0), mask=live & here)
    peak = tl.max(logits, axis=0)
    first = tl.min(tl.where(logits == peak[None, :], ids[:, None], vocab), axis=0)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    weight = tl.exp(logits - safe[None, :])
    heat = tl.load(temperature + row // per_batch, mask=live, other=0.0)
    inverse = tl.where(heat > 0, 1.0 / tl.where(heat > 0, heat, 1.0), 1.0)
    warm = tl.exp((logits - safe[None, :]) * inverse[None, :])
    at = stats + tile * rows + row
    plane = tl.num_programs(1) * rows
    tl.store(at, peak, mask=live)
    tl.store(at + plane, tl.sum(weight, axis=0), mask=live)
    moment = tl.sum(weight * tl.where(weight > 0, logits, 0.0), axis=0)
    tl.store(at + 2 * plane, moment, mask=live)
    tl.store(at + 3 * plane, tl.sum(warm, axis=0), mask=live)
    tl.store(at + 4 * plane, broken, mask=live)
    tl.store(best + tile * rows + row, first, mask=live)


@triton.jit
def _head_kernel(
    hidden,
    weight,
    temperature,
    banned,
    asked,
    asked_logit,
    stats,
    best,
    kept,
    rows,
    per_batch,
    vocab,
    SIZE: tl.constexpr,
    BANNED: tl.constexpr,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
    KEEP: tl.constexpr,
):
    """One tile of the vocabulary for up to TOKENS rows. The weights are the left operand: they are
    the tall one."""
    tile = tl.program_id(1)
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live = row < rows
    ids = tile * VOCAB + tl.arange(0, VOCAB)
    column = tl.arange(0, COLUMNS)
    w = weight + ids[:, None].to(tl.int64) * SIZE + column[None, :]
    h = hidden + row[None, :].to(tl.int64) * SIZE + column[:, None]
    logits = tl.zeros([VOCAB, TOKENS], dtype=tl.float32)
    for first in range(0, SIZE, COLUMNS):
        inside = first + column < SIZE
        left = tl.load(w + first, mask=(ids < vocab)[:, None] & inside[None, :], other=0.0)
        right = tl.load(h + first, mask=live[None, :] & inside[:, None], other=0.0)
        logits = tl.dot(left.to(DTYPE), right.to(DTYPE), logits, input_precision="ieee")
    _leave_stats(
        logits, ids, row, live, temperature, banned, asked, asked_logit, stats, best, kept, rows,
        per_batch, vocab, tile, BANNED, KEEP,
    )  # fmt: skip


@triton.jit
def _logits_kernel(
    logits,
    temperature,
    banned,
    asked,
    asked_logit,
    stats,
    best,
    kept,
    rows,
    per_batch,
    vocab,
    BANNED: tl.constexpr,
    VOCAB: tl.constexpr,
    KEEP: tl.constexpr,
):
    """One tile of one row's given logits."""
    tile = tl.program_id(1)
    row = tl.program_id(0) + tl.arange(0, 1)
    ids = tile * VOCAB + tl.arange(0, VOCAB)
    where = row[None, :].to(tl.int64) * vocab + ids[:, None]
    values = tl.load(logits + where, mask=(ids < vocab)[:, None], other=float("-inf"))
    _leave_stats(
        values.to(tl.float32), ids, row, row < rows, temperature, banned, asked, asked_logit, stats,
        best, kept, rows, per_batch, vocab, tile, BANNED, KEEP,
    )  # fmt: skip


@triton.jit
def uniform(seed, position, step):
    """float32 in (0, 1): `philox.uniform` for stream 0."""
    word, _, _, _ = tl.philox(
        seed, position.to(tl.uint32), step.to(tl.uint32), (position * 0).to(tl.uint32),
        (position * 0).to(tl.uint32),
    )  # fmt: skip
    return ((word >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def _merge_kernel(
    stats,
    best,
    logits,
    temperature,
    seed,
    start,
    step,
    proposal,
    confidence,
    asked,
    entropy,
    log_norm,
    greedy,
    nonfinite,
    rows,
    per_batch,
    vocab,
    tiles,
    TILES_2: tl.constexpr,
    VOCAB: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    """One row: merges its tiles in order, and samples where its temperature is above 0."""
    row = tl.program_id(0)
    batch = row // per_batch
    t = tl.arange(0, TILES_2)
    live = t < tiles
    at = stats + t * rows + row
    plane = tiles * rows
    peaks = tl.load(at, mask=live, other=float("-inf"))
    peak = tl.max(peaks, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    share = tl.exp(peaks - peak)
    mass = tl.sum(share * tl.load(at + plane, mask=live, other=0.0), axis=0)
    moment = tl.sum(share * tl.load(at + 2 * plane, mask=live, other=0.0), axis=0)
    broken = tl.sum(tl.load(at + 4 * plane, mask=live, other=0.0), axis=0)
    first = tl.load(best + t * rows + row, mask=live, other=0)
    winner = tl.min(tl.where(live & (peaks == peak), first, vocab - 1), axis=0)
    norm = peak + tl.log(mass)
    tl.store(log_norm + row, norm)
    tl.store(entropy + row, tl.maximum(norm - moment / mass, 0.0))
    tl.store(greedy + row, winner)
    tl.store(nonfinite + row, broken.to(tl.int32))
    chosen = winner
    sure = tl.exp(peak - norm)
    asked_logit = tl.load(asked + row)  # left there by the tile that holds the id
    asked_prob = tl.exp(asked_logit - norm)
    heat = tl.load(temperature + batch)
    if SAMPLE:  # noqa: SIM102 - known when compiling, unlike the condition below
        if heat > 0:
            warm = tl.exp((peaks - peak) / heat) * tl.load(at + 3 * plane, mask=live, other=0.0)
            wide = warm.to(tl.float64)
            up_to = tl.cumsum(wide, axis=0)
            whole = tl.sum(wide, axis=0)
            position = tl.load(start + batch) + row % per_batch
            draw = uniform(tl.load(seed + batch), position, tl.load(step + batch))
            target = draw.to(tl.float64) * whole
            tile = tl.min(tl.where(live & (up_to > target), t, tiles - 1), axis=0)
            below = tl.sum(tl.where(t < tile, wide, 0.0), axis=0)
            ids = tile * VOCAB + tl.arange(0, VOCAB)
            values = tl.load(
                logits + row.to(tl.int64) * vocab + ids, mask=ids < vocab, other=float("-inf")
            )
            inside = tl.exp((values - peak) / heat).to(tl.float64)
            reached = below + tl.cumsum(inside, axis=0)
            last = tl.max(tl.where(values > float("-inf"), ids, 0), axis=0)
            chosen = tl.min(tl.where((reached > target) & (ids < vocab), ids, last), axis=0)
            value = tl.load(logits + row.to(tl.int64) * vocab + chosen)
            sure = tl.exp((value - peak) / heat) / whole.to(tl.float32)
            asked_prob = tl.exp((asked_logit - peak) / heat) / whole.to(tl.float32)
    tl.store(proposal + row, chosen)
    tl.store(confidence + row, sure)
    tl.store(asked + row, asked_prob)
