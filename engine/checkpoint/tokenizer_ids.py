"""Cross-checks the tokenizer with the config: vocabulary size and the mask id.

Reads tokenizer.json (or what stands for it) and tokenizer_config.json as plain JSON. Knows token
texts and ids; does not tokenise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.checkpoint.byte_bpe import VOCAB, older_tokenizer
from engine.checkpoint.folder import JsonObject, ModelFolder, read_json
from engine.checkpoint.refusals import DOWNLOAD_AGAIN, printable, refuse
from engine.errors import CheckpointError
from engine.models.family import FamilySpec
from engine.models.token_fields import MASK_TOKENS

_FIX = "Download tokenizer.json and config.json of one model."


@dataclass(frozen=True)
class TokenizerIds:
    """added: special and added tokens, text -> id. texts: every token, id -> text. largest: the
    highest id. stated_mask: the text that tokenizer_config.json calls the mask token, if any. file:
    the one the vocabulary is from."""

    added: Mapping[str, int]
    texts: Mapping[int, str]
    largest: int
    stated_mask: str | None
    file: str

    def mask(self) -> tuple[str, int] | None:
        """The mask token by its stated text, else by one of the usual ones."""
        names = [self.stated_mask] if self.stated_mask else []
        return next(
            ((name, self.added[name]) for name in (*names, *MASK_TOKENS) if name in self.added),
            None,
        )


def read_tokenizer_ids(folder: ModelFolder) -> TokenizerIds | None:
    """The ids of the folder's tokenizer, or None when it has none. Raises CheckpointError."""
    file = "tokenizer.json"
    if file in folder.file_names:
        data = read_json(folder.path / file)
    else:
        older, file = older_tokenizer(folder.path), VOCAB
        if older is None:
            return None
        data = older
    added = _added_tokens(data)
    vocab = _vocabulary(data)
    texts = {token_id: text for text, token_id in vocab.items()}
    texts.update({token_id: text for text, token_id in added.items()})
    stated: object = None
    if "tokenizer_config.json" in folder.file_names:
        stated = read_json(folder.path / "tokenizer_config.json").get("mask_token")
    if isinstance(stated, dict):  # the long form: {"content": ..., "special": ...}
        stated = stated.get("content")
    return TokenizerIds(
        added=added,
        texts=texts,
        largest=max(texts, default=-1),
        stated_mask=stated if isinstance(stated, str) else None,
        file=file,
    )


def folder_has_template(folder: ModelFolder) -> bool:
    """Whether the folder brings a chat template, in a file of its own or in
    tokenizer_config.json."""
    if (folder.path / "chat_template.jinja").exists():
        return True
    if "tokenizer_config.json" not in folder.file_names:
        return False
    return bool(read_json(folder.path / "tokenizer_config.json").get("chat_template"))


def check_tokenizer(ids: TokenizerIds, spec: FamilySpec) -> tuple[str, ...]:
    """Refuses a tokenizer that disagrees with the config, with both values. Returns notes."""
    if ids.largest >= spec.vocab_size:
        raise refuse(
            "checkpoint.tokenizer_too_large",
            f"{ids.file} has token ids up to {ids.largest}, but config.json: vocab_size is"
            f" {spec.vocab_size}.",
            _FIX,
            file=ids.file,
            item="vocab_size",
        )
    notes = [] if spec.mask_token_id is None else _check_mask(ids, spec.mask_token_id)
    unknown = [str(stop) for stop in spec.stop_ids if stop not in ids.texts]
    if unknown:
        notes.append(f"The tokenizer has no token for the stop id {', '.join(unknown)}.")
    return tuple(notes)


def _check_mask(ids: TokenizerIds, wanted: int) -> list[str]:
    text, mask = ids.texts.get(wanted), ids.mask()
    named = text is not None and text in ids.added and "mask" in text.lower()
    if ids.stated_mask is None and named:
        return []  # whatever it is called, and whatever other mask tokens there are
    if mask is not None and mask[1] != wanted:
        raise _mask_disagrees(wanted, f"{ids.file} gives {printable(mask[0])} the id {mask[1]}")
    if mask is not None:
        return []
    if text is None:
        return [f"The tokenizer has no token for the mask id {wanted}."]
    if text in ids.added:
        return [f"The mask id {wanted} is the tokenizer's token {printable(text)}."]
    shown = printable(repr(text))
    raise _mask_disagrees(wanted, f"{ids.file} uses that id for the ordinary token {shown}")


def _mask_disagrees(wanted: int, problem: str) -> CheckpointError:
    return refuse(
        "checkpoint.mask_id_disagrees",
        f"config.json: mask_token_id is {wanted}, but {problem}.",
        _FIX,
        file="config.json",
        item="mask_token_id",
    )


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
