"""The one step function: a forward over the block (and the block before it, when that still needs
its commit), then the rule.

`runtime/eager.py` calls it in a Python loop; a captured graph replays the same function. It mutates
static buffers and never reads the host, but for the Python arguments that select its shape
(`with_previous`, `bound`, `steering`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.decoding.judge import Judgement, judge
from engine.decoding.rules import Rule
from engine.decoding.state import BlockState, RowSettings
from engine.decoding.steering import SteeringState
from engine.models.backbone import AnyBackbone
from engine.models.layers import Attend
from engine.runtime.cache import CachedAttend, KVCache
from engine.runtime.carry import Carry
from engine.runtime.rows import Row
from engine.runtime.tap import StateTap
from engine.runtime.watch import Watch


class StepProgram:
    """Model, cache, rule and state of one batch, and the step over them.

    This one is block-causal: a position sees its own block and all before it. Other block rules are
    subclasses that say what they do otherwise. shares_commit: a finished block's commit can be
    taken in the next block's first forward. looks_ahead: `step_and_ahead` can be used. prefills:
    there is a cache to fill. foresees: a block's first token is said by the block before. attends:
    what attention is computed by on a GPU, in words.
    """

    shares_commit = True
    looks_ahead = True
    prefills = True
    foresees = False
    attends = ""

    def __init__(
        self,
        model: AnyBackbone,
        cache: KVCache,
        state: BlockState,
        rule: Rule,
        suppressed: int | None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.state = state
        self.rule = rule
        self.suppressed = suppressed
        batch, self.block_length = state.tokens.shape
        residual = model.residual
        self.tap: StateTap | None = None
        self.watch: Watch | None = None  # of the variant that runs (`ReplyPieces.select`)
        self.carry: Carry | None = None
        if residual is not None:
            self.carry = Carry(residual, model.embedding, batch, self.block_length)
            self.looks_ahead = False  # the next block's first step would be told apart from it

    @property
    def remembers(self) -> bool:
        """A step after a block's first also reads what the one before expected."""
        return self.carry is not None

    @property
    def written(self) -> tuple[Tensor, ...]:
        """Buffers of its own that a step writes, beside state and cache."""
        carried = () if self.carry is None else (self.carry.expected, self.carry.doubt)
        return carried if self.tap is None else (*carried, self.tap.count)

    def record_states(self, slots: int) -> StateTap:
        """From now on keeps what every step reads, of the last reply (training). Before anything
        is captured."""
        batch, length = self.state.tokens.shape
        self.tap = StateTap(slots, batch, length, self.state.tokens.device)
        if self.carry is not None:
            self.tap.keep_residual(self.carry)
        self.looks_ahead = False  # a step ahead is of another block than the one noted
        return self.tap

    def load(self, rows: Sequence[Row]) -> None:
        """Called with every request, before its first piece."""
        if self.tap is not None:
            self.tap.reset()

    def prefill(self, ids: Tensor, positions: Tensor, bound: int) -> None:
        """Writes the KV of blocks whose tokens are final: ids, positions int64 [B, T], T a whole
        number of blocks. No logits."""
        self.model(self.model.embed(ids), positions, self._attend(positions, bound, 0))

    def commit(self, bound: int) -> None:
        """Writes the KV of the finished block before this one, in a forward of its own."""
        self.prefill(self.state.previous, self._previous_positions(), bound)

    def step(
        self,
        settings: RowSettings,
        bound: int,
        with_previous: bool,
        steering: SteeringState | None = None,
    ) -> Judgement:
        """One denoising forward for every row, then the rule. Returns what the model said.

        with_previous: the forward also covers the finished block before (its KV becomes final in
        the same pass, which is the commit: under block-causal attention its queries cannot see the
        new block). One forward instead of two.
        """
        return self._judged(self.look(bound, with_previous, steering), settings, steering)

    def look(
        self, bound: int, with_previous: bool, steering: SteeringState | None = None
    ) -> Tensor:
        """The forward of a step: logits float32 [B, L, V] of the block."""
        state = self.state
        if steering is not None:
            steering.take_back(state, self.rule.mask_id, hold=not self.rule.moves)
        positions = state.positions
        if with_previous:
            ids = torch.cat((state.previous, state.tokens), dim=1)
            where = torch.cat((self._previous_positions(), positions), dim=1)
        else:
            ids, where = state.tokens, positions
        attend = self._attend(where, bound, self.block_length)
        hidden = self.model(self._embeds(ids), where, attend)
        return self.model.logits(hidden[:, -self.block_length :])

    def step_and_ahead(
        self,
        settings: RowSettings,
        settings_ahead: RowSettings,
        bound: int,
        next_canvas: Tensor,
        steering: SteeringState | None = None,
    ) -> Judgement:
        """One step of this block, in a forward that also looks at the next one as it will begin
        (int64 [B, L]). Returns what the model said of the next block at its step 0.

        If the rule changes nothing, this block's keys in the forward were final, so what was said
        of the next block is exactly what its first step would be told.
        """
        here, there = self.look_ahead(bound, next_canvas, steering)
        state, length = self.state, self.block_length
        positions = state.positions
        zero = torch.zeros_like(state.step)
        judgement = judge(here, settings, positions, state.step, self.suppressed, steering)
        then = (positions + length, zero, self.suppressed, steering)
        ahead = judge(there, settings_ahead, *then)
        if self.watch is not None:
            self.watch.note(here)
            self.watch.note_ahead(there)
        self.rule.apply(state, judgement, settings)
        return ahead

    def look_ahead(
        self, bound: int, next_canvas: Tensor, steering: SteeringState | None = None
    ) -> tuple[Tensor, Tensor]:
        """The forward of `step_and_ahead`: logits of this block and of the next."""
        state = self.state
        if steering is not None:
            steering.take_back(state, self.rule.mask_id, hold=not self.rule.moves)
        length, positions = self.block_length, state.positions
        where = torch.cat((positions, positions + length), dim=1)
        ids = torch.cat((state.tokens, next_canvas), dim=1)
        attend = self._attend(where, bound, 2 * length)
        logits = self.model.logits(self.model(self.model.embed(ids), where, attend))
        return logits[:, :length], logits[:, length:]

    def _embeds(self, ids: Tensor) -> Tensor:
        """What a step's forward begins with, int64 [B, T] -> [B, T, H]: the block comes last, and
        may carry a residual."""
        embeds = self.model.embed(ids)
        if self.carry is None:
            return embeds
        before, block = embeds[:, : -self.block_length], embeds[:, -self.block_length :]
        return torch.cat((before, self.carry.add_to(block, self.state)), dim=1)

    def _judged(
        self, logits: Tensor, settings: RowSettings, steering: SteeringState | None
    ) -> Judgement:
        """Logits of the block, judged; then the rule, and what the next step will carry."""
        state = self.state
        if self.tap is not None:
            self.tap.note(state, self.carry)
        judgement = judge(logits, settings, state.positions, state.step, self.suppressed, steering)
        if self.watch is not None:
            self.watch.note(logits, None if settings.sampled else judgement.log_norm)
        taking = ~state.finished
        self.rule.apply(state, judgement, settings)
        if self.carry is not None:
            self.carry.keep(judgement, self._undecided(), taking)
        return judgement

    def _undecided(self) -> Tensor:
        """bool [B, L]: positions that may still carry a residual."""
        return (self.state.tokens == self.rule.mask_id) & ~self.state.prompt

    def _attend(self, where: Tensor, bound: int, canvas: int) -> Attend:
        """Who sees whom in a forward over `where` (int64 [B, T]), of which the last `canvas`
        positions are being denoised and the others final."""
        return CachedAttend(self.cache, where, bound, self.block_length)

    def _previous_positions(self) -> Tensor:
        """int64 [B, L]. Clamped for rows without a block before (they are over, and unread)."""
        return (self.state.positions - self.block_length).clamp_min(0)
