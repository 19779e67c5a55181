"""Gathers the tensors of many experts into stacks, in a few copies instead of thousands.

Knows how tensors lie in files: those of one layer are neighbours, and each kind comes at a constant
distance. A layer's bytes are brought to the device as they lie and sorted there. Any other order is
handled too, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.checkpoint.staging import StagedReader
from engine.checkpoint.tensor_file import TensorEntry, TensorFile

NEAR = 1 << 20  # bytes between neighbours that are read through rather than jumped over
LARGEST = 1 << 30  # bytes brought at a time


@dataclass(frozen=True, eq=False)
class Part:
    """Entry i becomes out[i]; out is contiguous, on the device, of any dtype of the entries'
    size."""

    entries: Sequence[TensorEntry]
    out: Tensor


@dataclass(frozen=True)
class _Place:
    entry: TensorEntry
    part: int
    index: int


def gather(
    parts: Sequence[Part], files: Callable[[TensorEntry], TensorFile], reader: StagedReader
) -> None:
    """Fills every part's `out`."""
    places = [
        _Place(entry, number, index)
        for number, part in enumerate(parts)
        for index, entry in enumerate(part.entries)
    ]
    places.sort(key=lambda place: (place.entry.file, place.entry.start))
    for run in _runs(places):
        first = run[0].entry.start
        size = run[-1].entry.stop - first
        raw = torch.empty(size, dtype=torch.uint8, device=reader.device)
        reader.copy(files(run[0].entry), first, raw)
        for number, part in enumerate(parts):
            mine = [place for place in run if place.part == number]
            if mine:
                _sort_into(part.out, mine, raw, first)


def _runs(places: Sequence[_Place]) -> Iterator[list[_Place]]:
    """Neighbours of one file."""
    run: list[_Place] = []
    for place in places:
        if run:
            last, entry = run[-1].entry, place.entry
            near = entry.file == last.file and entry.start - last.stop <= NEAR
            if not near or entry.stop - run[0].entry.start > LARGEST:
                yield run
                run = []
        run.append(place)
    if run:
        yield run


def _sort_into(out: Tensor, places: Sequence[_Place], raw: Tensor, first: int) -> None:
    """One part's tensors out of a run of bytes that starts at file offset `first`."""
    rows = out.view(out.shape[0], -1).view(torch.uint8) if out.dim() > 1 else _rows_of_one(out)
    size = rows.shape[1]
    starts = [place.entry.start - first for place in places]
    steps = {b - a for a, b in pairwise(starts)}
    if len(steps) > 1:
        for place, start in zip(places, starts, strict=True):
            rows[place.index].copy_(raw[start : start + size])
        return
    step = steps.pop() if steps else size
    lying = raw.as_strided((len(places), size), (step, 1), starts[0])
    rows.index_copy_(0, _index(places, raw.device), lying)


def _index(places: Sequence[_Place], device: torch.device) -> Tensor:
    """int64 [n]. Pinned on its way: from ordinary memory the copy would wait for the device."""
    pinned = device.type == "cuda"
    index = torch.tensor([place.index for place in places], pin_memory=pinned)
    return index.to(device, non_blocking=True)


def _rows_of_one(out: Tensor) -> Tensor:
    """uint8 [E, item size] of a vector."""
    return out.view(torch.uint8).view(out.shape[0], -1)
