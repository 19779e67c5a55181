"""Verifiers: is a reply right? One module per kind of check, chosen by `check["kind"]`.

Knows only the dispatch. `verify` judges one reply, `verify_many` a batch with the sandbox's workers
in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainer.data.skills import Example
from trainer.verify.answers import check_items, check_number, check_text
from trainer.verify.code import check_python
from trainer.verify.facts import check_facts
from trainer.verify.records import check_json
from trainer.verify.sandbox import shared_sandbox
from trainer.verify.story import check_story
from trainer.verify.verdict import Verdict

__all__ = ["Verdict", "verify", "verify_many"]

CHECKS = {
    "number": check_number,
    "text": check_text,
    "items": check_items,
    "json": check_json,
    "python": check_python,
    "story": check_story,
    "facts": check_facts,
}


def verify(example: Example, reply: str) -> Verdict:
    """Whether a reply answers the example's prompt rightly. Raises KeyError for an unknown kind."""
    return CHECKS[example.check["kind"]](example.check, reply)


def verify_many(examples: Sequence[Example], replies: Sequence[str]) -> list[Verdict]:
    """Verdicts in order; replies that must be run are run side by side."""
    runs = any(example.check["kind"] == "python" for example in examples)
    with ThreadPoolExecutor(shared_sandbox().size if runs else 1) as pool:
        return list(pool.map(verify, examples, replies))
