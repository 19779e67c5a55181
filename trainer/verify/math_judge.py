"""Whether two mathematical expressions are the same, by `math-verify` and sympy.

Runs inside the sandbox's worker (`sandbox_worker.py`), which limits time and memory and lets
nothing out: reading foreign LaTeX may take for ever, or more memory than there is. Knows no reply
and no task, and imports nothing of this package.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)  # its own time limits are off: the worker has one
_KINDS = (LatexExtractionConfig(), ExprExtractionConfig())


def _read(text: str) -> list[Any]:
    return parse(text, extraction_config=_KINDS, parsing_timeout=0)


def equal(expected: str, found: str) -> str:
    """Empty when both are the same, else why not. expected, found: LaTeX or plain expressions."""
    gold = _read(expected)
    if not gold:
        return "the row's own answer cannot be read as mathematics"
    mine = _read(found)
    if not mine:
        return "no mathematical answer"
    same = verify(gold, mine, float_rounding=6, timeout_seconds=0)
    return "" if same else f"{mine[-1]} is not {gold[-1]}"[:160]


# Imports that the libraries put off would fail behind the lock: make them happen before it.
for _pair in (
    (r"\boxed{\frac{1}{2}}", r"\boxed{0.5}"),
    (r"\boxed{x^2+2x+1}", r"\boxed{(x+1)^2}"),
    (r"\boxed{\{1,2\} \cup [3,4)}", r"\boxed{[3,4) \cup \{1,2\}}"),
    (r"\boxed{(1, \sqrt{2})}", r"\boxed{(1, 2^{1/2})}"),
    (r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}", r"\boxed{x = 5}"),
    (r"\boxed{x \le \sin(\pi)}", r"\boxed{\text{A}}"),
    (r"\boxed{\int_0^1 x dx}", r"1/2"),
    ("50\\%", "1/2"),
):
    equal(*_pair)
