"""What is kept of a step's logits for a person: the most likely tokens of every position, and all
logits of a few chosen ones.

Found on the device inside the step and kept in a ring of its own beside the trace ring, one slot a
step, so that a graph writes it as the eager loop does. Knows the words of a slot and how they are
read on the host. Knows no rule: it looks at logits after bans and the suppressed mask, before a
person's temperature and filters. Row 0 of a batch alone is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.decoding.state import BlockState
from engine.types import Capture, StepTaken, TokenState

MAX_TOP = 16  # candidates of a position; what the kernel of `engine.kernels.best` can find
MAX_POSITIONS = 4  # whose logits one reply can keep
BUDGET = 256 * 2**20  # bytes a ring may take on the device
FEWEST = 8  # slots it has whatever they take
_NOWHERE = -1
_TOGETHER = 2**24  # logits searched at a time

# logits float32 [R, V], log_norm float32 [R] -> ids int32 [R, k], probabilities float32 [R, k]
FindBest = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Watch:
    """records int32 [slots, words]; floats are stored by their bits. Words: ids [L, k],
    probabilities [L, k], and with `full` the positions [MAX_POSITIONS] whose logits follow
    [MAX_POSITIONS, V].

    positions int64 [MAX_POSITIONS]: absolute, the chosen ones, -1 where unused.
    """

    def __init__(
        self,
        state: BlockState,
        vocab: int,
        suppressed: int | None,
        steps: Tensor,
        slots: int,
        full: bool,
        find_best: FindBest | None = None,
    ) -> None:
        """steps int64 [1]: steps taken before the one that is watched, on the device. slots: at
        most so many. find_best: kernels that do it; None = torch."""
        self.state, self.vocab, self.suppressed, self.steps = state, vocab, suppressed, steps
        self.length = state.tokens.shape[1]
        self.top = most_candidates(vocab)
        self.full = full
        self.words = slot_words(self.length, vocab, full)
        self.slots = max(min(slots, BUDGET // (4 * self.words)), min(slots, FEWEST))
        device = state.tokens.device
        self.positions = torch.full((MAX_POSITIONS,), _NOWHERE, dtype=torch.int64, device=device)
        self.records = torch.zeros(self.slots, self.words, dtype=torch.int32, device=device)
        self._ahead = torch.zeros(self.words, dtype=torch.int32, device=device)
        self._find_best = find_best or best_of
        self._capture = Capture()

    def load(self, capture: Capture) -> None:
        """What a request chose; the device's buffer is overwritten in place."""
        self._capture = capture
        chosen = [*dict.fromkeys(capture.positions), *[_NOWHERE] * MAX_POSITIONS][:MAX_POSITIONS]
        self.positions.copy_(torch.tensor(chosen, dtype=torch.int64))

    def note(self, logits: Tensor, log_norm: Tensor | None = None) -> None:
        """Of the step that is being taken: logits float32 [B, L, V], overwritten at the suppressed
        id. log_norm float32 [B, L] of the plain softmax, where it is known."""
        self._keep(self._found(logits, log_norm, self.state.start[0]))

    def note_ahead(self, logits: Tensor, log_norm: Tensor | None = None) -> None:
        """Of the next block's first step, which may come to count (`accept`)."""
        start = self.state.start[0] + self.length
        self._ahead.copy_(self._found(logits, log_norm, start))

    def accept(self) -> None:
        """The step ahead is the one that is being taken."""
        self._keep(self._ahead)

    def _keep(self, found: Tensor) -> None:
        self.records.index_copy_(0, self.steps % self.slots, found.unsqueeze(0))

    def _found(self, logits: Tensor, log_norm: Tensor | None, start: Tensor) -> Tensor:
        """int32 [words]."""
        rows = logits[0]
        if self.suppressed is not None:
            rows.select(-1, self.suppressed).fill_(float("-inf"))
        norm = rows.logsumexp(-1) if log_norm is None else log_norm[0]
        ids, shares = self._find_best(rows, norm, self.top)
        parts = [ids.flatten(), shares.view(torch.int32).flatten()]
        if self.full:
            column = self.positions - start
            inside = (column >= 0) & (column < self.length)
            kept = rows.index_select(0, column.clamp(0, self.length - 1)).contiguous()
            parts.append(torch.where(inside, self.positions, _NOWHERE).to(torch.int32))
            parts.append(kept.view(torch.int32).flatten())
        return torch.cat(parts)

    def add_to(self, step: StepTaken, words: npt.NDArray[np.int32]) -> StepTaken:
        """A step with what its slot held (int32 [words], on the host): as many candidates as the
        request asked for, none at prompt positions."""
        size = self.length * self.top
        shape = (self.length, self.top)
        top = min(self._capture.top_k, self.top)
        ids = words[:size].reshape(shape)[:, :top].copy()
        shares = words[size : 2 * size].view(np.float32).reshape(shape)[:, :top].copy()
        given = step.state == TokenState.PROMPT
        ids[given], shares[given] = -1, np.nan
        if not self.full:
            return replace(step, top_ids=ids, top_p=shares)
        where = words[2 * size : 2 * size + MAX_POSITIONS]
        logits = words[2 * size + MAX_POSITIONS :].view(np.float32)
        here = where >= 0
        return replace(
            step,
            top_ids=ids,
            top_p=shares,
            logits=logits.reshape(MAX_POSITIONS, self.vocab)[here].copy(),
            logit_positions=where[here].copy(),
        )


def most_candidates(vocab: int) -> int:
    """Of a position: as many can always be had, whatever a person bans."""
    return min(MAX_TOP, vocab // 4)


def slot_words(length: int, vocab: int, full: bool) -> int:
    """int32 words of one step."""
    return 2 * length * most_candidates(vocab) + (MAX_POSITIONS * (1 + vocab) if full else 0)


def best_of(logits: Tensor, log_norm: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest of each row, best first, ties to the lower id: logits float32 [R, V],
    log_norm float32 [R] -> ids int32, probabilities float32 [R, top]. The reference of
    `engine.kernels.best`."""
    vocab = logits.shape[-1]
    parts = logits.split(max(1, _TOGETHER // vocab))
    if len(parts) > 1:  # a whole-sequence canvas: the keys below take twice what logits take
        norms = log_norm.split(max(1, _TOGETHER // vocab))
        found = [best_of(part, norm, top) for part, norm in zip(parts, norms, strict=True)]
        return torch.cat([ids for ids, _ in found]), torch.cat([shares for _, shares in found])
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: no negative zero
    rising = (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)  # in the numbers' order
    below = torch.arange(vocab, 0, -1, device=logits.device)  # of equals the lower id is greater
    keys = rising.to(torch.int64).mul_(2**32).add_(below)
    found = vocab - keys.topk(top, dim=-1).values.remainder(2**32)
    shares = (logits.gather(-1, found) - log_norm.unsqueeze(-1)).exp()
    return found.to(torch.int32), shares
