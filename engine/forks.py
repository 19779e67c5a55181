"""Makes a reply follow a recorded one up to a step, and its changes from there on.

A fork is the whole reply taken again: every draw is keyed by seed, position and step, so the same
model, runtime and settings take the same steps, and the steps before the fork are compared with the
trace as they come. Knows how changes become steering; what can be changed at all is
`engine.trace.fork`, how a step is steered `engine.decoding.steering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.check_request import check_settings
from engine.decoding.steering import TAKEN_BACK, Moment, Placement, Steering
from engine.models.family import FamilySpec
from engine.trace.errors import TraceError
from engine.trace.fork import Fork, check_change, check_same, parent_of
from engine.trace.header import TraceHeader, TraceParent
from engine.trace.trace import Trace
from engine.types import Event, ModelInfo, StepTaken


def check_fork(fork: Fork, spec: FamilySpec, foresees: bool) -> None:
    """Raises TraceError for a change the model cannot follow, and RequestError for settings out of
    range. foresees: see `engine.runtime.step.StepProgram`."""
    check_change(fork.trace, parent_of(fork), spec.vocab_size, spec.mask_token_id)
    if fork.change.settings is not None:
        check_settings(fork.change.settings)
    start, length = parent_of(fork).block_start, fork.trace.ids.shape[1]
    touched = [*fork.change.mask, *(position for position, _ in fork.change.ban)]
    if foresees and any((p - start) % length == 0 for p in touched if p >= 0):
        raise TraceError(
            "trace.fork_change",
            "The first token of a block is said by the block before in this model, and never"
            " denoised.",
            "Force another token there, or change the block before.",
        )


def check_repeatable(trace: Trace, room: int, width: int, spec: FamilySpec) -> None:
    """Raises TraceError for a reply that the loaded model cannot have given or has no room for, and
    RequestError for settings out of range: a trace may come from anywhere. room: tokens that fit
    behind the prompt; width: positions of a block here."""
    header = trace.header
    if room < header.max_new_tokens:
        raise TraceError(
            "trace.no_room",
            f"The reply may take {header.max_new_tokens} tokens, and behind its prompt is room for "
            f"{room}.",
            "Close other programs and load the model again, or choose a smaller one.",
        )
    if trace.ids.shape[1] != width:
        raise TraceError(
            "trace.other_model",
            f"The trace has blocks of {trace.ids.shape[1]} positions, the loaded model of {width}.",
            f"Load {header.model_name or 'the model it was recorded with'}.",
        )
    for parent in header.ancestry:
        check_change(trace, parent, spec.vocab_size, spec.mask_token_id)
        if parent.change.settings is not None:
            check_settings(parent.change.settings)


def check_model(header: TraceHeader, info: ModelInfo, spec: FamilySpec) -> None:
    """Raises TraceError `trace.other_model` when ids or steps would mean something else."""
    facts = (
        ("family", header.model_family, info.family),
        ("decoding rule", header.decoding, info.decoding),
        ("vocabulary", header.vocab_size, spec.vocab_size),
        ("mask", header.mask_id, info.mask_id),
    )
    for name, theirs, ours in facts:
        if theirs != ours:
            raise TraceError(
                "trace.other_model",
                f"The trace is of another kind of model: its {name} is {theirs or 'not known'}, "
                f"the loaded one's {ours}.",
                f"Load {header.model_name or 'the model it was recorded with'}.",
            )
    if header.settings is None or not header.prompt_ids or header.max_new_tokens < 1:
        raise TraceError(
            "trace.not_repeatable",
            "The trace does not say with which prompt and settings it was recorded.",
            "Record the reply with this version of Unblur.",
        )


def steering_of(chain: Sequence[TraceParent], length: int) -> Steering:
    """All changes of a chain of forks, the root's first. length: positions of a block."""
    bans: list[tuple[Moment, int, int]] = []
    placements: list[Placement] = []
    switches = []
    for parent in chain:
        moment, change = Moment(parent.block_start, parent.block_step), parent.change
        bans += [(moment, position, token) for position, token in change.ban]
        placements += [_placed(parent, position, token, length) for position, token in change.force]
        placements += [_placed(parent, position, TAKEN_BACK, length) for position in change.mask]
        if change.settings is not None:
            switches.append((moment, change.settings))
    switches.sort(key=lambda pair: pair[0])  # a stable sort: of two at one moment the later counts
    return Steering(later_bans=bans, placements=placements, switches=switches)


def _placed(parent: TraceParent, position: int, token: int, length: int) -> Placement:
    inside = position < parent.block_start + length
    return Placement(position, parent.block_step if inside else 0, token)


def compared(fork: Fork, events: Iterator[Event]) -> Iterator[Event]:
    """The events, as long as the steps before the fork are the parent's. Raises TraceError
    `trace.fork_differs`."""
    for event in events:
        if isinstance(event, StepTaken):
            check_same(fork, event)
        yield event
