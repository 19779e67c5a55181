"""What a loaded model is, in facts and in sentences for a person.

Knows where each fact comes from; decides nothing.
"""

from __future__ import annotations

from engine.capacity import context_in_words
from engine.checkpoint import Checkpoint
from engine.loading import Placement
from engine.runtime.choice import LoopChoice
from engine.types import ModelInfo

NO_MASK = -1  # `ModelInfo.mask_id` of a model whose canvas is not made of masks


def describe(
    checkpoint: Checkpoint, placement: Placement, context: int, choice: LoopChoice, words: list[str]
) -> ModelInfo:
    spec = checkpoint.spec
    notes = [*checkpoint.notes, f"{placement.reason[0].upper()}{placement.reason[1:]}."]
    notes += placement.kernels.sentences
    notes.append(f"Steps run as {choice.path}. {choice.reason}")
    notes += [sentence for sentence in words if sentence]
    notes.append(context_in_words(spec, placement, context))
    if placement.kv_dtype is not None:
        notes.append("Keys and values are kept in FP8, which was asked for and is not exact.")
    return ModelInfo(
        name=checkpoint.name,
        family=checkpoint.family,
        path=str(checkpoint.path),
        parameters=spec.table.parameters,
        quantisation=checkpoint.layout,
        context=context,
        block_length=min(spec.block_length, context),
        decoding=spec.decoding,
        device=str(placement.device),
        runtime=f"{choice.path}, {placement.reason}",
        weight_bytes=checkpoint.total_bytes,
        mask_id=NO_MASK if spec.mask_token_id is None else spec.mask_token_id,
        stop_ids=spec.stop_ids,
        defaults=spec.defaults,
        notes=tuple(notes),
    )
