"""What a forward's logits say: the proposed token of each position, its probability, and how
uncertain the model is.

Knows softmax, filters and sampling. Accepting anything is the rules' business. Draws come from
`engine.kernels.philox`, so the same seed gives the same token on any device, up to rounding of the
probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.decoding.state import RowSettings
from engine.decoding.steering import SteeringState
from engine.kernels.philox import uniform


@dataclass
class Judgement:
    """proposal int64 [B, L]; confidence float32 [B, L] = probability of the proposal after
    temperature and filters; entropy float32 [B, L] in nats of the plain softmax; scores float32 [B,
    L, V] = processed logits; log_norm [B, L]; finite bool [B, 1]: every logit of the row's block
    was finite (the suppressed mask apart). greedy int64 [B, L]: their argmax, where it is known."""

    proposal: Tensor
    confidence: Tensor
    entropy: Tensor
    scores: Tensor
    log_norm: Tensor
    finite: Tensor
    greedy: Tensor | None = None

    @property
    def best(self) -> Tensor:
        """int64 [B, L]: the most likely tokens."""
        return self.scores.argmax(-1) if self.greedy is None else self.greedy

    def probability(self, ids: Tensor) -> Tensor:
        """float32 [B, L]: probability of the given ids under the processed distribution."""
        chosen = self.scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return (chosen - self.log_norm).exp()


def judge(
    logits: Tensor,
    settings: RowSettings,
    positions: Tensor,
    step: Tensor,
    suppressed: int | None,
    steering: SteeringState | None = None,
) -> Judgement:
    """logits float32 [B, L, V] (overwritten at `suppressed` and at banned tokens), positions int64
    [B, L], step int64 [B, 1].

    suppressed: the mask id, which is never to be emitted: its logit becomes -inf before the softmax
    (a deliberate deviation from the reference code, models.md 1.6). None keeps it, for parity tests
    alone.
    """
    # NaN and inf both survive a sum of |x|*0; the reduction avoids a [B, L, V] temporary of
    # booleans.
    finite = (logits * 0).sum(dim=(1, 2)).isfinite().unsqueeze(1)
    if suppressed is not None:
        logits.select(-1, suppressed).fill_(float("-inf"))
    if steering is not None:
        steering.forbid(logits, positions, step)
    log_norm = logits.logsumexp(-1)
    probabilities = (logits - log_norm.unsqueeze(-1)).exp()
    expected = torch.where(probabilities > 0, probabilities * logits, 0.0).sum(-1)
    entropy = (log_norm - expected).clamp_min(0.0)
    greedy = logits.argmax(-1)
    if not settings.sampled:
        confidence = probabilities.gather(-1, greedy.unsqueeze(-1)).squeeze(-1)
        return Judgement(greedy, confidence, entropy, logits, log_norm, finite)

    warm = settings.temperature > 0
    scores = logits / torch.where(warm, settings.temperature, 1.0).unsqueeze(-1)
    if settings.filtered:
        scores = _filter(scores, settings)
    log_norm = scores.logsumexp(-1)
    probabilities = (scores - log_norm.unsqueeze(-1)).exp()
    draw = uniform(settings.seed, positions, step)
    proposal = torch.where(warm, _inverse_cdf(probabilities, draw), greedy)
    confidence = probabilities.gather(-1, proposal.unsqueeze(-1)).squeeze(-1)
    return Judgement(proposal, confidence, entropy, scores, log_norm, finite)


def _filter(scores: Tensor, settings: RowSettings) -> Tensor:
    """-inf outside the top_k best, and outside the smallest set whose probability reaches top_p
    (the best always stays).

    Ties at the k-th place fall to the lower token id. Rows with temperature 0 are untouched (argmax
    needs no filter).
    """
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    vocab = scores.shape[-1]
    limit = torch.where(settings.top_k > 0, settings.top_k, vocab).unsqueeze(-1)
    rank = torch.arange(vocab, device=scores.device)
    kept = ranked.masked_fill(rank >= limit, float("-inf"))
    mass = kept.softmax(-1)
    kept = kept.masked_fill(mass.cumsum(-1) - mass >= settings.top_p.unsqueeze(-1), float("-inf"))
    filtered = torch.empty_like(scores).scatter_(-1, order, kept)
    return torch.where((settings.temperature > 0).unsqueeze(-1), filtered, scores)


def _inverse_cdf(probabilities: Tensor, draw: Tensor) -> Tensor:
    """int64 [B, L]: the first id whose cumulative probability exceeds draw * total. One uniform per
    position."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = draw.to(torch.float64).unsqueeze(-1) * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return index.clamp_max(probabilities.shape[-1] - 1)
