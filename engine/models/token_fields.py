"""Reads the special tokens of a checkpoint from its configs and its tokenizer, and words what is
missing.

Knows the usual texts of mask tokens. Knows no family: what a family falls back on comes as an
argument.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.models.config_fields import ConfigFields

MASK_TOKENS = (
    "<|mask|>",
    "<|MASK|>",
    "[MASK]",
    "<mask>",
    "|<MASK>|",
    "<|mdm_mask|>",
)


def read_mask_id(
    c: ConfigFields,
    g: ConfigFields,
    tokens: Mapping[str, int],
    vocab: int,
    notes: list[str],
    released: int | None,
) -> int:
    """The mask id of config.json, generation_config.json, the tokenizer's added tokens, or the
    released one, in this order; the last two leave a note. Raises CheckpointError."""
    stated = c.optional_id("mask_token_id", vocab)
    generated = g.optional_id("mask_token_id", vocab)
    if stated is not None and generated is not None and stated != generated:
        raise c.refusal(
            "checkpoint.mask_id_disagrees",
            "mask_token_id",
            f"is {stated}, but generation_config.json says {generated}",
            "Correct the file that is wrong, or download the folder again.",
        )
    found = generated if stated is None else stated
    if found is not None:
        return found
    for text in MASK_TOKENS:
        if text in tokens:
            notes.append(f"The mask id {tokens[text]} comes from the tokenizer's token {text}.")
            return tokens[text]
    if released is not None:
        notes.append(f"No file names the mask token; {released}, as released, is used.")
        return released
    raise c.refusal(
        "checkpoint.mask_id_missing",
        "mask_token_id",
        "is absent, generation_config.json does not name it, and no tokenizer has a mask token",
        "Add mask_token_id to config.json.",
    )


def read_stop_ids(
    c: ConfigFields, g: ConfigFields, vocab: int, notes: list[str], released: int | None
) -> tuple[int, ...]:
    """The end tokens of generation_config.json, else of config.json, else the released one with a
    note. Raises CheckpointError."""
    ids = g.ids("eos_token_id", vocab) or c.ids("eos_token_id", vocab)
    if ids:
        return ids
    if released is None:
        raise c.refusal(
            "checkpoint.stop_id_missing",
            "eos_token_id",
            "is absent, and generation_config.json does not name it either",
            "Add eos_token_id to config.json.",
        )
    notes.append(f"No file names the end token; {released}, as released, is used.")
    return (released,)
