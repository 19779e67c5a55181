"""Cross-checks the tokenizer with the config: vocabulary size and the mask id.

Reads tokenizer.json and tokenizer_config.json as plain JSON. Knows token texts and ids; does not
tokenise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.checkpoint.folder import JsonObject, ModelFolder, read_json
from engine.checkpoint.refusals import DOWNLOAD_AGAIN, printable, refuse
from engine.models.llada2_spec import MASK_TOKENS, LLaDA2Spec

_FIX = "Download tokenizer.json and config.json of one model."


@dataclass(frozen=True)
class TokenizerIds:
    """added: special and added tokens, text -> id. largest: the highest id any token has. mask: its
    mask token, if any.
    """

    added: Mapping[str, int]
    largest: int
    mask: tuple[str, int] | None
    texts: Mapping[int, str]


def read_tokenizer_ids(folder: ModelFolder) -> TokenizerIds | None:
    """The ids of the folder's tokenizer, or None when it has no tokenizer.json. Raises
    CheckpointError.
    """
    if "tokenizer.json" not in folder.file_names:
        return None
    data = read_json(folder.path / "tokenizer.json")
    added = _added_tokens(data)
    vocab = _vocabulary(data)
    largest = max([*vocab.values(), *added.values()], default=-1)
    texts = {token_id: text for text, token_id in vocab.items()}
    texts.update({token_id: text for text, token_id in added.items()})
    stated: object = None
    if "tokenizer_config.json" in folder.file_names:
        stated = read_json(folder.path / "tokenizer_config.json").get("mask_token")
    if isinstance(stated, dict):  # the long form: {"content": ..., "special": ...}
        stated = stated.get("content")
    names = [stated] if isinstance(stated, str) else []
    mask = next(((name, added[name]) for name in (*names, *MASK_TOKENS) if name in added), None)
    return TokenizerIds(added, largest, mask, texts)


def check_tokenizer(ids: TokenizerIds, spec: LLaDA2Spec) -> tuple[str, ...]:
    """Refuses a tokenizer that disagrees with the config, with both values. Returns notes."""
    if ids.largest >= spec.vocab_size:
        raise refuse(
            "checkpoint.tokenizer_too_large",
            f"tokenizer.json has token ids up to {ids.largest}, but config.json: vocab_size is"
            f" {spec.vocab_size}.",
            _FIX,
            file="tokenizer.json",
            item="vocab_size",
        )
    if ids.mask is not None and ids.mask[1] != spec.mask_token_id:
        raise refuse(
            "checkpoint.mask_id_disagrees",
            f"config.json: mask_token_id is {spec.mask_token_id}, but tokenizer.json gives"
            f" {printable(ids.mask[0])} the id {ids.mask[1]}.",
            _FIX,
            file="config.json",
            item="mask_token_id",
        )
    if ids.mask is None and spec.mask_token_id in ids.texts:
        raise refuse(
            "checkpoint.mask_id_disagrees",
            f"config.json: mask_token_id is {spec.mask_token_id}, but in tokenizer.json that id is"
            f" the ordinary token {printable(repr(ids.texts[spec.mask_token_id]))}.",
            _FIX,
            file="config.json",
            item="mask_token_id",
        )
    notes = []
    if ids.mask is None:
        notes.append(f"The tokenizer has no token for the mask id {spec.mask_token_id}.")
    unknown = [str(stop) for stop in spec.stop_ids if stop not in ids.texts]
    if unknown:
        notes.append(f"The tokenizer has no token for the stop id {', '.join(unknown)}.")
    return tuple(notes)


def _added_tokens(data: JsonObject) -> dict[str, int]:
    listed = data.get("added_tokens", [])
    added: dict[str, int] = {}
    for item in listed if isinstance(listed, list) else [None]:
        text = item.get("content") if isinstance(item, dict) else None
        token_id = item.get("id") if isinstance(item, dict) else None
        if not isinstance(text, str) or type(token_id) is not int or token_id < 0:
            raise _invalid("added_tokens", "holds something that is not a token")
        added[text] = token_id
    return added


def _vocabulary(data: JsonObject) -> dict[str, int]:
    """text -> id of the model's own vocabulary (BPE and WordPiece: a table; Unigram: a list of
    pairs).
    """
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict) and all(type(value) is int for value in vocab.values()):
        return vocab
    if isinstance(vocab, list) and all(isinstance(item, list) and item for item in vocab):
        return {str(item[0]): index for index, item in enumerate(vocab)}
    raise _invalid("model.vocab", "is missing or is not a vocabulary")


def _invalid(item: str, problem: str) -> Exception:
    return refuse(
        "checkpoint.tokenizer_invalid",
        f"tokenizer.json: {item} {problem}.",
        DOWNLOAD_AGAIN,
        file="tokenizer.json",
        item=item,
    )
