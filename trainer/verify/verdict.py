"""What a verifier says about a reply. Knows nothing of how replies are judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """ok: the reply is right. reason: why not, in a few words; empty when it is right."""

    ok: bool
    reason: str = ""


def wrong(reason: str) -> Verdict:
    return Verdict(False, reason)


RIGHT = Verdict(True)
NO_REFERENCE = wrong("the row has no answer to compare with")
