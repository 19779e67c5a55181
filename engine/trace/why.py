"""Why one of two replies took longer, in sentences: each of them says figures that the comparison
holds.

Knows words. Refuses to judge quality: fewer steps are fewer steps, whatever the answer says.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.trace.compare import Comparison, Difference, Divergence
from engine.trace.drag import Drag, Stubborn
from engine.trace.numbers import TraceNumbers
from engine.trace.reading import text_of
from engine.trace.trace import Trace
from engine.types import TokenState

MOST_BLOCKS = 3
MOST_POSITIONS = 3
STATES = {
    TokenState.MASKED: "masked",
    TokenState.DRAFT: "open",
    TokenState.COMMITTED: "accepted",
    TokenState.EDITED: "edited",
    TokenState.PROMPT: "the prompt's",
}


def quoted(trace: Trace, token: int) -> str:
    """A token's text in quotes, with what cannot be seen written out; "nothing" for -1."""
    if token < 0:
        return "nothing"
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    shown = (
        escapes.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text_of(trace, token)
    )
    return f"“{''.join(shown)}”"


def divergence_sentence(a: Trace, b: Trace, found: Comparison) -> str:
    """Where the two part."""
    at = found.diverged
    if found.raster is None:
        if found.first_token is None:
            return "Every final token is the same."
        return f"The first final token that differs is at position {found.first_token}."
    if at is None:
        longer = [b.start for b in found.blocks if b.a != b.b]
        if not longer:
            return "They never part: every step they share is the same."
        return (
            f"Every step they share is the same; from position {longer[0]} on one of them goes on."
        )
    where = f"They part in step {at.step + 1} of the block at {at.block_start}"
    tail = (
        " The final tokens are all the same."
        if found.first_token is None
        else f" The first final token that differs is at position {found.first_token}."
    )
    return f"{where}, position {at.position}: {_parting(a, b, at)}.{tail}"


def _parting(a: Trace, b: Trace, at: Divergence) -> str:
    one = f"A has {quoted(a, at.token_a)} ({STATES[at.state_a]}{_at(at.confidence_a)})"
    other = f"B has {quoted(b, at.token_b)} ({STATES[at.state_b]}{_at(at.confidence_b)})"
    if at.kind is Difference.STATE:
        return f"the same token, but {one} and {other}"
    return f"{one}, {other}"


def _at(confidence: float | None) -> str:
    return "" if confidence is None else f" at {confidence:.3f}"


def why_slower(a: Trace, b: Trace, found: Comparison) -> tuple[str, ...]:
    """Sentences, the most telling first. One that says so when neither is slower or it is not
    known."""
    if found.slower is None:
        if found.a["tpf"].value is None or found.b["tpf"].value is None:
            return (
                "Which one is slower is not known: a trace without its reply's end has no TPF.",
            )
        return ("Neither is slower: both give as many tokens per forward.",)
    slow_is_a = found.slower == "a"
    slow, fast = (found.a, found.b) if slow_is_a else (found.b, found.a)
    trace, drag = (a, found.drag_a) if slow_is_a else (b, found.drag_b)
    other = found.drag_b if slow_is_a else found.drag_a
    name, rival = ("A", "B") if slow_is_a else ("B", "A")
    return (
        _headline(name, rival, slow, fast),
        *_ceilings(slow, fast),
        *_commits(slow, fast),
        *_blocks(found, slow_is_a),
        *_caps(trace, drag),
        *_stubborn(trace, drag, found, slow_is_a),
        *_more_edits(slow, fast),
        *_edits(trace, drag, other),
        *_clock(name, slow, fast),
    )


def _headline(name: str, rival: str, slow: TraceNumbers, fast: TraceNumbers) -> str:
    def ratio(numbers: TraceNumbers) -> str:
        return (
            f"{numbers['tpf'].text} tokens per forward ({numbers['tokens'].text} tokens in "
            f"{numbers['forwards'].text} forwards)"
        )

    return f"{name} is slower: {ratio(slow)} against {ratio(fast)} of {rival}."


def _ceilings(slow: TraceNumbers, fast: TraceNumbers) -> Iterator[str]:
    if slow["ceiling"].text != fast["ceiling"].text:
        yield (
            f"Their answers allow different speeds: the ceilings are {slow['ceiling'].text} and "
            f"{fast['ceiling'].text}, because of their lengths and commits."
        )


def _commits(slow: TraceNumbers, fast: TraceNumbers) -> Iterator[str]:
    more = (slow["commit_forwards"].value or 0) - (fast["commit_forwards"].value or 0)
    if more > 0:
        yield f"{more:.0f} more of its forwards only committed a block."


def _blocks(found: Comparison, slow_is_a: bool) -> Iterator[str]:
    pairs = [
        (block.start, *((block.a, block.b) if slow_is_a else (block.b, block.a)))
        for block in found.blocks
    ]
    extra = [(mine - theirs, s, mine, theirs) for s, mine, theirs in pairs if mine and theirs]
    more = sorted((e for e in extra if e[0] > 0), key=lambda e: (-e[0], e[1]))
    if more:
        named = ", ".join(
            f"{mine} steps instead of {theirs} at {start}"
            for _, start, mine, theirs in more[:MOST_BLOCKS]
        )
        total = sum(e[0] for e in more)
        yield f"{_count(len(more), 'block')} took more steps, {total} in all: {named}."
    alone = [mine for _, mine, theirs in pairs if mine and not theirs]
    if alone:
        yield (
            f"{_count(len(alone), 'block')} of its answer the other does not have: "
            f"{_count(sum(alone), 'step')}."
        )


def _caps(trace: Trace, drag: Drag) -> Iterator[str]:
    if drag.capped:
        starts = {int(n): int(s) for n, s in zip(trace.block, trace.block_start, strict=True)}
        places = ", ".join(str(starts[block]) for block in drag.capped[:MOST_BLOCKS])
        more = ", ..." if len(drag.capped) > MOST_BLOCKS else ""
        yield f"{_count(len(drag.capped), 'block')} ran out of steps, at {places}{more}."


def _stubborn(trace: Trace, drag: Drag, found: Comparison, slow_is_a: bool) -> Iterator[str]:
    """Of the positions that stayed open longest, those that the other settled sooner."""
    final = found.final
    theirs = dict(
        zip(
            final.position.tolist(),
            (final.open_b if slow_is_a else final.open_a).tolist(),
            strict=True,
        )
    )
    worse = [one for one in drag.stubborn if one.open_steps > theirs.get(one.position, 0)]
    if worse:
        named = "; ".join(_held_up(trace, one) for one in worse[:MOST_POSITIONS])
        yield f"Open for longest: {named}."


def _more_edits(slow: TraceNumbers, fast: TraceNumbers) -> Iterator[str]:
    mine, theirs = slow["edits"], fast["edits"]
    if (mine.value or 0) > (theirs.value or 0):
        yield f"It edited {_count(int(mine.value or 0), 'token')}, the other {theirs.text}."


def _held_up(trace: Trace, one: Stubborn) -> str:
    end = "never accepted" if one.open_at_end else f"in the end {quoted(trace, one.token)}"
    entropy = "" if one.entropy is None else f", mean entropy {one.entropy:.2f} nat"
    return (
        f"position {one.position}, {one.open_steps} of its block's {one.block_steps} steps "
        f"({end}; {_count(one.guesses, 'guess', 'guesses')}{entropy})"
    )


def _edits(trace: Trace, drag: Drag, other: Drag) -> Iterator[str]:
    if drag.undone:
        first = drag.undone[0]
        yield (
            f"{_count(len(drag.undone), 'edit')} came to nothing (the other has "
            f"{len(other.undone)}): at position {first.position}, {quoted(trace, first.before)} "
            f"gave way to {quoted(trace, first.between)} and returned."
        )
    if drag.undone_steps:
        yield f"{_count(drag.undone_steps, 'step')} did nothing but such edits."
    if drag.idle_steps > other.idle_steps:
        yield (
            f"{_count(drag.idle_steps, 'step')} changed nothing (the other has "
            f"{other.idle_steps}); a block's last check is one."
        )


def _clock(name: str, slow: TraceNumbers, fast: TraceNumbers) -> Iterator[str]:
    mine, theirs = slow["ms_per_step"], fast["ms_per_step"]
    if mine.value is not None and theirs.value is not None and mine.text != theirs.text:
        yield f"A step of {name} takes {mine.text}, one of the other {theirs.text}."


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
