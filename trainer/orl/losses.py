"""The three losses of ORL, position by position and pair by pair.

Knows logits, targets and weights. Which states there are and how replies are normalised is decided
before (`trainer.orl.packing`); knows no model and no optimiser. Source: orl.md section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]  # hidden [P, H] -> logits float32 [P, V]
CHUNK = 8192  # positions whose logits are in memory at once


@dataclass(frozen=True, eq=False)
class Said:
    """What the model in training, and the frozen one, say of P open positions; float32 [P] each.

    surprise: cross entropy to the final token, nats. entropy: of the model's own distribution,
    nats. divergence: reverse KL from the frozen model, KL(p || p_start), nats. start_entropy: of
    the frozen model, nats; start_best int64 [P]: its choice. No gradient in the last two.
    """

    surprise: Tensor
    entropy: Tensor
    divergence: Tensor
    start_entropy: Tensor
    start_best: Tensor


def judge_positions(
    hidden: Tensor,
    start_hidden: Tensor | None,
    targets: Tensor,
    head: Head,
    start_head: Head,
    suppressed: int | None,
    chunk: int = CHUNK,
) -> Said:
    """hidden, start_hidden [P, H], targets int64 [P]. Logits are made chunk by chunk and made again
    for the gradient, so that [P, V] is never held. Without start_hidden nothing is said of the
    frozen model: divergence and its entropy are 0, its choice the target."""

    def part(
        h: Tensor, h0: Tensor | None, ids: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        logs = _log_softmax(head(h), suppressed)
        p = logs.exp()
        safe = torch.where(p > 0, logs, 0.0)
        entropy = -(p * safe).sum(-1)
        surprise = -logs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        if h0 is None:
            nothing = torch.zeros_like(entropy)
            return surprise, entropy, nothing, nothing, ids
        with torch.no_grad():
            start = _log_softmax(start_head(h0), suppressed)
        started = torch.where(p > 0, start, 0.0)
        divergence = (p * (safe - started)).sum(-1)
        q = start.exp()
        start_entropy = -(q * torch.where(q > 0, start, 0.0)).sum(-1)
        return surprise, entropy, divergence, start_entropy, start.argmax(-1)

    pieces = hidden.split(chunk)
    starts = [None] * len(pieces) if start_hidden is None else start_hidden.split(chunk)
    parts = [
        checkpoint(part, h, h0, ids, use_reentrant=False, preserve_rng_state=False)
        for h, h0, ids in zip(pieces, starts, targets.split(chunk), strict=True)
    ]
    return Said(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _log_softmax(logits: Tensor, suppressed: int | None) -> Tensor:
    if suppressed is not None:
        column = torch.arange(logits.shape[-1], device=logits.device) == suppressed
        logits = logits.masked_fill(column, float("-inf"))
    return F.log_softmax(logits.float(), dim=-1)


def uncertain(said: Said, targets: Tensor, gate: str, nats: float) -> Tensor:
    """bool [P]: positions that learning is for. start: the frozen model's entropy is above `nats`;
    disagreement: it prefers another token than the final one; either; all."""
    unsure = said.start_entropy > nats
    other = said.start_best != targets
    choices = {"start": unsure, "disagreement": other, "either": unsure | other}
    return choices.get(gate, torch.ones_like(unsure))


def prediction_loss(said: Said, gated: Tensor, weight: Tensor) -> Tensor:
    """[]: weighted cross entropy at uncertain positions."""
    return (said.surprise * weight * gated).sum()


def anchor_loss(said: Said, gated: Tensor, weight: Tensor, cap: float) -> Tensor:
    """[]: reverse KL from the frozen model at confident positions, at most `cap` nats each."""
    return (said.divergence.clamp(0.0, cap) * weight * ~gated).sum()


def contraction_loss(
    entropy: Tensor, vocabulary: int, state: Tensor, states: int, pairs: Tensor, rho: float
) -> tuple[Tensor, Tensor]:
    """Adjacent Entropy Contraction, max(0, H_next - (1 - rho) H_source)^2 with H_source detached.

    entropy float32 [P] in nats of open positions; state int64 [P]: which state each belongs to, of
    `states`; pairs int64 [2, N]: source and next states. Returns the loss of every pair float32 [N]
    and H float32 [states], the mean normalised entropy over a state's own open positions.
    """
    h = mean_entropy(entropy, vocabulary, state, states)
    source, after = h[pairs[0]].detach(), h[pairs[1]]
    return contraction(source, after, rho), h


def contraction(source: Tensor, after: Tensor, rho: float) -> Tensor:
    """max(0, after - (1 - rho) source)^2, elementwise (orl.md: .40, .36, rho .25 -> .0036)."""
    return (after - (1.0 - rho) * source).clamp_min(0.0).square()


def mean_entropy(entropy: Tensor, vocabulary: int, state: Tensor, states: int) -> Tensor:
    """float32 [states]: mean of entropy / ln V over the positions of each state, 0 without any."""
    total = entropy.new_zeros(states).index_add(0, state, entropy / math.log(vocabulary))
    count = entropy.new_zeros(states).index_add(0, state, torch.ones_like(entropy))
    return total / count.clamp_min(1.0)
