"""Who can judge replies, in words for a choice.

Knows the verifiers' names. How data is read and checked is the trainer's (`trainer.data`).
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields


@dataclass(frozen=True)
class JudgeKind:
    """A verifier that can be chosen: its key, name, a sentence, and whether it needs answers in the
    data."""

    key: str
    title: str
    summary: str
    needs_answers: bool


def judge_kinds() -> tuple[JudgeKind, ...]:
    """Every verifier there is that needs no options. Slow the first time: not for the GUI
    thread."""
    from trainer.verify.registry import KINDS

    return tuple(
        JudgeKind(key, kind.title, kind.summary, kind.reference)
        for key, kind in KINDS.items()
        if _works_alone(kind.options)
    )


def _works_alone(options: type) -> bool:
    """Whether a verifier's options all have defaults."""
    return all(
        f.default is not MISSING or f.default_factory is not MISSING for f in fields(options)
    )
