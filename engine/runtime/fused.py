"""Bookkeeping of a reply in one launch a piece, where a kernel covers the checkpoint's rule.

Knows which buffers each launch takes and when it may be used; what is computed is
`engine.runtime.fused_kernels`, its reference the torch functions it replaces. Needs Triton.
"""

# Triton's annotations describe its compiler, not the tensors a kernel computes with.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor

from engine.decoding.rules import EditingRule, QuotaRule
from engine.decoding.said import KernelJudge, Said
from engine.decoding.state import RowSettings
from engine.runtime.fused_kernels import begin_kernel, end_kernel, step_kernel
from engine.runtime.reply import ReplyState
from engine.runtime.ring import TraceRing
from engine.runtime.step import StepProgram

MAX_ROWS = 1024  # the last program of a launch looks at all rows at once
MAX_LENGTH = 256  # ranks are found by comparing all pairs of a block


class FusedBooks:
    """The launches over one batch's buffers. ahead: see `ReplyPieces`."""

    words = (
        "Rule, counters and trace are one kernel launch a step, what a forward says is judged in "
        "two; PyTorch operations judge where a request has top-k or top-p."
    )

    def __init__(
        self, program: StepProgram, reply: ReplyState, ring: TraceRing, ahead: bool
    ) -> None:
        rule = program.rule
        assert isinstance(rule, QuotaRule | EditingRule)
        self.program, self.reply, self.ring = program, reply, ring
        self.rule, self.ahead = rule, ahead
        batch, length = program.state.tokens.shape
        device = program.state.tokens.device
        self.judge = KernelJudge(batch, length, program.suppressed, device)
        self._flags = torch.zeros(2, batch, dtype=torch.int32, device=device)
        self._ticket = torch.zeros(1, dtype=torch.int32, device=device)
        self._shape = {"LENGTH": length, "PADDED": triton.next_power_of_2(length)}
        self._rows = {"BATCH": batch, "BATCH_2": triton.next_power_of_2(batch)}

    def after_step(self, said: Said, settings: RowSettings, record: bool, verify: bool) -> None:
        """The rule on what was said, the end of the step, its record, and with `verify` whether
        the step ahead counts. One launch."""
        state, reply, ring, options = self.program.state, self.reply, self.ring, self.rule.options
        step_kernel[(reply.batch,)](
            state.tokens,
            *_bytes(state.prompt),
            state.start,
            state.step,
            state.post,
            *_bytes(state.finished, state.settled, state.converged, state.nonfinite),
            state.proposal,
            state.confidence,
            state.entropy,
            *_bytes(state.changed, state.edited),
            state.replaced,
            said.proposal,
            said.confidence,
            said.asked,
            said.entropy,
            said.nonfinite,
            settings.reals,
            settings.counts,
            self.rule.stop_ids,
            reply.reason,
            reply.blocks,
            reply.max_blocks,
            reply.prompt_length,
            reply.step_cap,
            reply.stop_ids,
            reply.forwards,
            reply.control,
            ring.records,
            ring.slots,
            ring.words,
            self._flags,
            self._ticket,
            reply.mask_id,
            reply.capacity,
            **self._shape,
            **self._rows,
            EDITING=isinstance(self.rule, EditingRule),
            RULE_STOPS=self.rule.stop_ids.numel(),
            STOP_INSIDE=options.stop_inside_block,
            STOP_AFTER=reply.stop_after_block,
            AHEAD=self.ahead,
            VERIFY=verify,
            RECORD=record,
        )

    def begin(self, free: bool = False) -> None:
        """`ReplyState.begin_block`; free: the step that comes next took no forward of its own."""
        state, reply = self.program.state, self.reply
        begin_kernel[(reply.batch,)](
            state.previous,
            state.tokens,
            *_bytes(state.prompt),
            state.start,
            state.step,
            state.post,
            *_bytes(state.finished, state.settled, state.converged, state.nonfinite, state.edited),
            state.replaced,
            *_bytes(state.original),
            state.initial_masks,
            state.seen_count,
            reply.known,
            reply.first_start,
            reply.reason,
            reply.blocks,
            reply.forwards,
            reply.control,
            reply.mask_id,
            reply.capacity,
            **self._shape,
            FREE=free,
        )

    def end(self) -> None:
        """`ReplyState.end_block`."""
        state, reply = self.program.state, self.reply
        end_kernel[(reply.batch,)](
            state.tokens,
            state.start,
            state.step,
            *_bytes(state.finished, state.settled, state.converged, state.nonfinite),
            reply.prompt_length,
            reply.max_new,
            reply.max_blocks,
            reply.stop_ids,
            reply.reason,
            reply.blocks,
            reply.length,
            reply.forwards,
            reply.commits,
            reply.first_stop,
            *_bytes(reply.converged),
            reply.control,
            reply.log,
            reply.log.shape[1],
            self._ticket,
            reply.mask_id,
            **self._shape,
            **self._rows,
            STOP_AFTER=reply.stop_after_block,
        )


def fused_books(
    program: StepProgram, reply: ReplyState, ring: TraceRing, ahead: bool
) -> FusedBooks | None:
    """The launches, or None where the rule, the step or the sizes have none."""
    batch, length = program.state.tokens.shape
    covered = type(program) is StepProgram and type(program.rule) in (QuotaRule, EditingRule)
    if program.tap is not None or program.carry is not None:
        return None
    if not covered or batch > MAX_ROWS or length > MAX_LENGTH:
        return None
    return FusedBooks(program, reply, ring, ahead)


def _bytes(*flags: Tensor) -> tuple[Tensor, ...]:
    """The same memory as uint8."""
    return tuple(flag.view(torch.uint8) for flag in flags)
