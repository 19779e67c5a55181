"""Frames as an animated GIF or WebP, one at a time: no more than one frame is ever in memory.

Knows the two containers (GIF89a; WebP's RIFF chunks VP8X, ANIM and ANMF). The pictures inside are
Pillow's: it encodes each frame alone, and what it wrote is taken over as it is.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable
from typing import BinaryIO

import numpy as np
from PIL import Image

from app.backend.trace_export.animation_frames import SAME, Frame
from app.backend.trace_export.writing import ExportError

LEAST_HUNDREDTHS = 2  # browsers slow down a GIF that asks for less
Progress = Callable[[int], None]  # frames written so far
MOST_RIFF = 2**32 - 2


def write_gif(
    frames: Iterable[Frame],
    size: tuple[int, int],
    palette: bytes,
    file: BinaryIO,
    progress: Progress,
) -> None:
    """A GIF that repeats for ever. palette: 256 x 3 bytes."""
    file.write(b"GIF89a" + struct.pack("<HHBBB", *size, 0xF7, 0, 0) + palette)
    file.write(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")
    for number, frame in enumerate(frames, 1):
        hundredths = max(LEAST_HUNDREDTHS, round(frame.seconds * 100))
        # 5: what is there stays under this frame, which has points without a colour
        times = struct.pack("<HB", min(hundredths, 65535), SAME)
        file.write(b"\x21\xf9\x04\x05" + times + b"\0")
        height, width = frame.indices.shape
        file.write(b"\x2c" + struct.pack("<HHHHB", frame.x, frame.y, width, height, 0))
        file.write(_gif_data(frame, palette))
        progress(number)
    file.write(b"\x3b")


def _gif_data(frame: Frame, palette: bytes) -> bytes:
    """The compressed points of a frame: code size and blocks, as Pillow's GIF of it holds them."""
    image = Image.fromarray(frame.indices, mode="P")
    image.putpalette(palette)
    buffer = io.BytesIO()
    image.save(buffer, format="GIF", optimize=False, interlace=False)
    whole = buffer.getvalue()
    at = 13 + _table_bytes(whole[10])
    while whole[at] == 0x21:  # an extension: label, then blocks up to an empty one
        at = _after_blocks(whole, at + 2)
    flags = whole[at + 9]
    begin = at + 10 + _table_bytes(flags)
    if whole[at] != 0x2C or whole[at + 10 : begin] not in (b"", palette):
        raise RuntimeError("Pillow wrote a GIF whose points are not those of the palette given")
    if not flags & 0x80 and whole[13 : 13 + _table_bytes(whole[10])] != palette:
        raise RuntimeError("Pillow wrote a GIF with another palette than the one given")
    return whole[begin : _after_blocks(whole, begin + 1)]


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += 1 + data[at]
    return at + 1


def write_webp(
    frames: Iterable[Frame],
    size: tuple[int, int],
    palette: bytes,
    file: BinaryIO,
    progress: Progress,
) -> None:
    """A lossless WebP that repeats for ever. file: can seek. Raises ExportError `export.too_large`
    beyond 4 GB, the most a WebP can say it holds."""
    begin = file.tell()
    file.write(b"RIFF\0\0\0\0WEBP")
    _chunk(file, b"VP8X", b"\x12\0\0\0" + _three(size[0] - 1) + _three(size[1] - 1))
    _chunk(file, b"ANIM", palette[2::-1] + b"\xff" + b"\0\0")
    for number, frame in enumerate(frames, 1):
        height, width = frame.indices.shape
        place = b"".join(_three(n) for n in (frame.x // 2, frame.y // 2, width - 1, height - 1))
        time = _three(min(max(1, round(frame.seconds * 1000)), 2**24 - 1))
        # 0: this frame is laid over the last, which shows where it has no colour
        _chunk(file, b"ANMF", place + time + b"\0" + _webp_chunks(frame, palette))
        if file.tell() - begin > MOST_RIFF:
            raise ExportError(
                "export.too_large",
                "The animation would have more than 4 GB.",
                "Show fewer steps (--every), or export it as a page.",
            )
        progress(number)
    end = file.tell()
    file.seek(begin + 4)
    file.write(struct.pack("<I", end - begin - 8))
    file.seek(end)


def _webp_chunks(frame: Frame, palette: bytes) -> bytes:
    """The VP8L chunk of a frame alone."""
    colors = np.frombuffer(palette, dtype=np.uint8).reshape(256, 3)
    alpha = np.where(frame.indices == SAME, 0, 255).astype(np.uint8)
    pixels = np.dstack([np.where(alpha[..., None] > 0, colors[frame.indices], 0), alpha])
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(
        buffer, format="WEBP", lossless=True, quality=20, method=1
    )
    whole = buffer.getvalue()
    at = 12
    while at + 8 <= len(whole):
        end = at + 8 + int.from_bytes(whole[at + 4 : at + 8], "little")
        end += end % 2
        if whole[at : at + 4] == b"VP8L":
            return whole[at:end]
        at = end
    raise RuntimeError("Pillow wrote a WebP without a lossless picture")


def _chunk(file: BinaryIO, name: bytes, content: bytes) -> None:
    file.write(name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2))


def _three(number: int) -> bytes:
    return number.to_bytes(3, "little")
