"""Whether a request's numbers can be served at all.

Knows ranges, and words for what lies outside them. Knows no model but its vocabulary's size.
"""

from __future__ import annotations

import math

from engine.errors import RequestError
from engine.runtime.watch import MAX_POSITIONS, most_candidates
from engine.types import Capture, DecodeSettings

SMALLEST = 1e-6  # of a temperature and of top_p: float32 must hold it, and logits divided by it


def check_settings(settings: DecodeSettings) -> None:
    """Raises RequestError `request.settings` naming the first setting that is out of range."""
    checks: tuple[tuple[str, bool, str], ...] = (
        ("threshold", 0.0 <= settings.threshold <= 1.0, "between 0 and 1"),
        (
            "editing threshold",
            settings.editing_threshold is None or 0.0 <= settings.editing_threshold <= 1.0,
            "between 0 and 1, or off",
        ),
        ("steps", 1 <= settings.steps < 2**63, "between 1 and 2^63 - 1"),
        ("min_transfer", 1 <= settings.min_transfer < 2**63, "between 1 and 2^63 - 1"),
        ("max_post_steps", 0 <= settings.max_post_steps < 2**63, "between 0 and 2^63 - 1"),
        (
            "temperature",
            settings.temperature == 0.0 or SMALLEST <= settings.temperature <= 10.0,
            f"0, or between {SMALLEST:g} and 10",
        ),
        ("top_k", 0 <= settings.top_k < 2**63, "0 (off), or at most 2^63 - 1"),
        ("top_p", SMALLEST <= settings.top_p <= 1.0, f"between {SMALLEST:g} and 1"),
        ("entropy bound", 0.0 <= settings.noise.entropy_bound < math.inf, "0 or more"),
        (
            "noise temperatures",
            0.0 <= settings.noise.t_min < settings.noise.t_max <= 10.0,
            "rising, between 0 and 10",
        ),
        ("stability", 0 <= settings.noise.stability < 2**24, "between 0 and 2^24 - 1"),
        ("mean entropy", 0.0 <= settings.noise.confidence < math.inf, "0 or more"),
        ("seed", 0 <= settings.seed < 2**63, "between 0 and 2^63 - 1"),
    )
    for name, good, range_text in checks:
        if not good:
            raise RequestError(
                "request.settings",
                f"The setting '{name}' must be {range_text}.",
                "Change it, or use the model's own settings.",
            )


def check_capture(capture: Capture, vocab_size: int) -> None:
    """Raises RequestError `request.capture` for more than a step can keep."""
    most = most_candidates(vocab_size)
    watched = capture.level in ("top-k", "full")
    if watched and not 1 <= capture.top_k <= most:
        raise _capture(
            f"{capture.top_k} candidates of every position cannot be kept.",
            f"Choose from 1 to {most}.",
        )
    if capture.level == "full" and not 1 <= len(set(capture.positions)) <= MAX_POSITIONS:
        raise _capture(
            f"Logits were asked for at {len(set(capture.positions))} positions.",
            f"Choose from 1 to {MAX_POSITIONS} positions, or record candidates only.",
        )
    if any(not 0 <= position < 2**31 for position in capture.positions):
        raise _capture("A position is below 0, or far beyond any reply.", "Choose another one.")


def _capture(problem: str, action: str) -> RequestError:
    return RequestError("request.capture", problem, action)
