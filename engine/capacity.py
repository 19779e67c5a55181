"""How many positions a loaded model can hold, and what they cost.

Knows the two ways a family keeps what came before: a KV cache, or nothing but the canvas itself.
Knows no runtime.
"""

from __future__ import annotations

from engine.loading import Placement
from engine.models.family import FamilySpec
from engine.runtime.whole import canvas_length

SHARE = 0.25  # of the memory that is free after the weights are in place
CANVAS_COPIES = 4  # float32 copies of a position's logits that a step over a canvas holds at once
LEAST_BLOCKS, LEAST_CANVAS = 8, 256


def context_of(spec: FamilySpec, placement: Placement, free_bytes: int) -> int:
    """Positions a conversation and its answer may have: what the model allows, as far as `SHARE` of
    the free memory holds it; whole blocks where there are blocks."""
    fixed = spec.kv_fixed_numbers * placement.kept_dtype.itemsize
    room = max(int(free_bytes * SHARE) - fixed, 0) // bytes_per_position(spec, placement)
    if spec.whole_sequence:
        return min(spec.max_position_embeddings, max(room, LEAST_CANVAS))
    block = spec.block_length
    context = min(spec.max_position_embeddings, max(room, LEAST_BLOCKS * block))
    return context // block * block


def room_for(spec: FamilySpec, prompt: int, max_new_tokens: int, context: int) -> int:
    """Positions a runtime needs for such a request: few different numbers for many requests."""
    if spec.whole_sequence:
        return canvas_length(prompt, max_new_tokens, context)
    unit = 8 * spec.block_length
    # Off the grid the last canvas may reach behind the answer's end by all but one token.
    spare = 0 if spec.on_grid else spec.block_length - 1
    return -(-(prompt + max_new_tokens + spare) // unit) * unit


def answer_room(spec: FamilySpec, prompt: int, context: int) -> int:
    """Most tokens an answer to such a prompt can have: off the grid, whole canvases."""
    room = max(context - prompt, 0)
    return room if spec.on_grid else room // spec.block_length * spec.block_length


def context_in_words(spec: FamilySpec, placement: Placement, context: int) -> str:
    limited = context + spec.block_length <= spec.max_position_embeddings
    if spec.whole_sequence:
        words = (
            "There is no KV cache: every step runs over prompt and answer, up to"
            f" {context} positions together"
        )
        limited = context < spec.max_position_embeddings
    else:
        fixed = spec.kv_fixed_numbers * placement.kept_dtype.itemsize
        size = (bytes_per_position(spec, placement) * context + fixed) / 1e9
        words = f"The KV cache holds {context} positions in {size:.2f} GB"
    if limited:
        words += f", which free memory limits (the model allows {spec.max_position_embeddings})"
    return words + "."


def bytes_per_position(spec: FamilySpec, placement: Placement) -> int:
    """Of the KV cache; without one, of the logits over a canvas."""
    if spec.whole_sequence:
        return 4 * CANVAS_COPIES * spec.vocab_size
    return spec.kv_numbers * placement.kept_dtype.itemsize
