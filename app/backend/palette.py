"""The colours, by role, in light and in dark, and the two heat scales. No other file holds one.

It knows values as hex text, without Qt: pictures and pages that leave the app have the window's
colours, and are made where there is no window.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colors:
    """Hex colours by role. Every text role is at least 4.5 : 1 on window, surface and raised."""

    window: str
    surface: str
    raised: str
    line: str
    text: str
    muted: str
    accent: str
    on_accent: str
    ok: str
    warn: str
    bad: str
    draft: str
    edited: str
    masked: str


LIGHT = Colors(
    window="#F7F7F5",
    surface="#FFFFFF",
    raised="#FFFFFF",
    line="#DEDDD8",
    text="#1B1C1E",
    muted="#5E6066",
    accent="#2F5BD3",
    on_accent="#FFFFFF",
    ok="#1E7A46",
    warn="#8A5A00",
    bad="#B3261E",
    draft="#8A4B08",
    edited="#7A2FA0",
    masked="#6B6D73",
)
DARK = Colors(
    window="#141517",
    surface="#1B1D20",
    raised="#24272B",
    line="#34373D",
    text="#ECEDEF",
    muted="#A3A7AF",
    accent="#8FAEFF",
    on_accent="#0E1430",
    ok="#63C98F",
    warn="#E3B341",
    bad="#FF8A80",
    draft="#F0B25E",
    edited="#D3A2F2",
    masked="#8E929B",
)
# Heat scales: nine colours from 0 to 1, the same in light and dark, lightness rising all the way.
RAMPS = {
    "cividis": (
        "#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369",
        "#FEE838",
    ),
    "magma": (
        "#000004", "#1C1044", "#51127C", "#832681", "#B73779", "#E75263", "#FC8961", "#FEC488",
        "#FCFDBF",
    ),
    # from -1 to 1: what speaks against a token, nothing, what speaks for it
    "effect": ("#9E4A06", "#E08A2E", "#F3CDA0", "#EDEDEA", "#A9CBE8", "#4A90CE", "#124E8C"),
    # six kinds, not a scale: same, open in one, another guess, another token, only A, only B
    "difference": ("#D9D9D6", "#56B4E9", "#E69F00", "#C1440E", "#009E73", "#CC79A7"),
}  # fmt: skip


def rgb(color: str) -> tuple[int, int, int]:
    """ "#RRGGBB" as red, green and blue, 0..255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def ramp(name: str, count: int) -> tuple[tuple[int, int, int], ...]:
    """`count` (>= 2) even steps of the heat scale `name` (of `RAMPS`), from 0 to 1."""
    stops = [rgb(stop) for stop in RAMPS[name]]
    found = []
    for index in range(count):
        place = index / (count - 1) * (len(stops) - 1)
        low = min(int(place), len(stops) - 2)
        below, above = stops[low], stops[low + 1]
        share = place - low
        found.append(tuple(round(b + (a - b) * share) for a, b in zip(above, below, strict=True)))
    return tuple(found)
