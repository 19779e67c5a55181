"""A trace as one page that replays it in any browser, with nothing else and without a network.

Knows how the page is put together: facts as JSON, arrays as deflated base64, and the script and
style of assets/replay. Trusts no text: a token, a prompt or a name of a model is data that the
page's script shows as text, and the page forbids any script and style but its own by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from app.backend.files import ASSETS
from app.backend.palette import DARK, LIGHT, Colors
from app.backend.scales import LEVELS
from app.backend.trace_export.lettering import columns, visible
from app.backend.trace_export.scales import FILLS, FixedScale, scale_for
from app.backend.trace_export.writing import ExportError
from engine.trace import Trace
from engine.trace.numbers import TraceNumbers, numbers_of
from engine.trace.reading import BlockSpan, kept_length, spans_of, text_of

REPLAY = ASSETS / "replay"
SCRIPTS = ("recording.js", "text_view.js", "plots.js", "side.js", "replay.js")
ARRAYS = (
    "ids", "state", "edited_from", "confidence", "entropy", "top_ids", "top_p",
)  # fmt: skip
MOST_BYTES = 512 * 2**20  # of arrays: a browser holds them all
PIECE = 3 * 2**18  # compressed bytes a line of base64: a multiple of three
ROWS_BYTES = 2**20
Json = dict[str, Any]


def write_replay(trace: Trace, file: BinaryIO) -> None:
    """The page, UTF-8, arrays piece by piece. Raises ExportError `export.too_large`."""
    arrays = {name: getattr(trace, name) for name in ARRAYS}
    found = {name: array for name, array in arrays.items() if array is not None}
    total = sum(array.nbytes for array in found.values())
    if total > MOST_BYTES:
        raise ExportError(
            "export.too_large",
            f"This trace holds {total / 2**20:,.0f} MB, more than a page can carry "
            f"({MOST_BYTES / 2**20:,.0f} MB).",
            "Record it with fewer candidates, or export it as CSV.",
        )
    file.write(_head(trace).encode())
    file.write(_data("application/json", "facts-json", _json(_facts(trace))))
    for name, array in found.items():
        file.write(f'<script type="text/plain" id="data-{name}">'.encode())
        for line in _packed(array):
            file.write(line + b"\n")
        file.write(b"</script>\n")
    file.write(f"<script>{_script()}</script>\n</body>\n</html>\n".encode())


def _head(trace: Trace) -> str:
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    title = html.escape(_plain(_title(trace)))
    body = (REPLAY / "page.html").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}"
    )


def _script() -> str:
    """In a function of its own, so that nothing of it is in reach of the page."""
    parts = [(REPLAY / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def _style() -> str:
    light, dark = _roles(LIGHT), _roles(DARK)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f':root[data-theme="light"] {{ color-scheme: light; {light} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}\n'
        + (REPLAY / "replay.css").read_text(encoding="utf-8")
    )


def _roles(colors: Colors) -> str:
    return " ".join(f"--{role.replace('_', '-')}: {value};" for role, value in vars(colors).items())


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(facts: Json) -> bytes:
    """ASCII, without a character that could end the element it stands in."""
    text = json.dumps(facts, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("ascii")


def _data(kind: str, name: str, content: bytes) -> bytes:
    return f'<script type="{kind}" id="{name}">'.encode() + content + b"</script>\n"


def _packed(array: npt.NDArray[Any]) -> Iterator[bytes]:
    """Deflated, in lines of base64 that each decode alone; little-endian."""
    packer = zlib.compressobj(6)
    kept = bytearray()
    row_bytes = max(1, array.nbytes // len(array))
    rows = max(1, ROWS_BYTES // row_bytes)
    for begin in range(0, len(array), rows):
        part = np.ascontiguousarray(array[begin : begin + rows])
        kept += packer.compress(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
        while len(kept) >= PIECE:
            yield base64.b64encode(kept[:PIECE])
            del kept[:PIECE]
    kept += packer.flush()
    for begin in range(0, len(kept), PIECE):
        yield base64.b64encode(kept[begin : begin + PIECE])


def _facts(trace: Trace) -> Json:
    """Everything but the arrays. The folder that a model lay in is nobody else's business: it is
    left out."""
    header, spans, numbers = trace.header, spans_of(trace), numbers_of(trace)
    origin = int(trace.block_start[0])
    settings = {} if header.settings is None else asdict(header.settings)
    settings.pop("noise", None)
    return {
        "title": _title(trace),
        "facts": _fact_line(trace),
        "steps": len(trace),
        "length": trace.ids.shape[1],
        "depth": 0 if trace.top_ids is None else trace.top_ids.shape[2],
        "origin": origin,
        "reached": _reached(trace, spans, origin),
        "widths": _widths(trace, spans, origin),
        "blocks": [
            {"begin": span.start - origin, "first": span.first, "last": span.last} for span in spans
        ],
        "blockNumber": [span.block for span in spans],
        "seconds": trace.seconds.tolist(),
        "pieces": {str(token): text for token, text in header.pieces.items()},
        "stopIds": list(header.stop_ids),
        "messages": [asdict(message) for message in header.messages],
        "answer": header.text,
        "settings": [[name.replace("_", " "), _word(value)] for name, value in settings.items()],
        "numbers": [
            {**asdict(figure), "value": None, "text": figure.text} for figure in numbers.figures
        ],
        "scales": {fill: _scale(scale_for(trace, fill)) for fill in FILLS},
        "curves": _curves(trace, numbers),
    }


def _title(trace: Trace) -> str:
    return f"{trace.header.model_name or 'A reply'}: how the answer came into focus"


def _plain(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _fact_line(trace: Trace) -> list[str]:
    header = trace.header
    reasons = {
        "stop_token": "ended by its stop token",
        "length": "ended at its length limit",
        "stopped": "stopped",
        "did_not_converge": "did not converge",
        None: "its end is not in this recording",
    }
    named = (header.model_family, header.quantisation, header.runtime, header.device)
    captured = "top-k captured" if trace.top_ids is not None else "candidates not captured"
    return [*(name for name in named if name), header.created, reasons[header.reason], captured]


def _word(value: object) -> str:
    return "off" if value is None else str(value)


def _reached(trace: Trace, spans: tuple[BlockSpan, ...], origin: int) -> int:
    """Positions up to and including the first stop token."""
    for span in spans:
        kept = kept_length(trace, span)
        if kept < trace.ids.shape[1]:
            return span.start - origin + kept
    return spans[-1].start - origin + trace.ids.shape[1]


def _widths(trace: Trace, spans: tuple[BlockSpan, ...], origin: int) -> list[int]:
    """Columns of each position's final token."""
    widths = [1] * (spans[-1].start - origin + trace.ids.shape[1])
    for span in spans:
        for column, token in enumerate(trace.ids[span.last].tolist()):
            text = visible(text_of(trace, token))
            widths[span.start - origin + column] = min(max(1, columns(text)), 76)
    return widths


def _scale(scale: FixedScale) -> Json:
    shades = scale.colors()[:: (LEVELS - 1) // 60]
    return {
        "name": scale.name,
        "maximum": scale.maximum,
        "ticks": list(scale.ticks),
        "unit": scale.unit,
        "root": scale.root,
        "colors": [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in (*shades, scale.colors()[-1])],
    }


def _curves(trace: Trace, numbers: TraceNumbers) -> list[Json]:
    timed = float(trace.seconds[-1]) > 0
    step_ms = np.diff(trace.seconds, prepend=0.0) * 1000 if timed else np.full(len(trace), np.nan)

    def line(name: str, color: str, values: npt.NDArray[Any], digits: int, unit: str = "") -> Json:
        known = [None if math.isnan(value) else value for value in values.astype(float).tolist()]
        return {"name": name, "color": color, "values": known, "digits": digits, "unit": unit}

    return [
        {
            "name": "Entropy of open positions, nat",
            "lines": [
                line("highest", "muted", numbers.entropy_max, 2, " nat"),
                line("mean", "accent", numbers.entropy_mean, 2, " nat"),
            ],
        },
        {
            "name": "Tokens of the step",
            "lines": [
                line("edited", "edited", numbers.edited_per_step, 0),
                line("accepted", "accent", numbers.accepted_per_step, 0),
            ],
        },
        {"name": "Milliseconds of the step", "lines": [line("took", "accent", step_ms, 2, " ms")]},
    ]
