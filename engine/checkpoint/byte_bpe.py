"""Qwen2's tokenizer from the files it was first published in: vocab.json, merges.txt and
tokenizer_config.json, as Dream's folders have them.

Knows the file formats and what Qwen2 does to a text before its merges; builds the content that a
tokenizer.json would have, so that there is one way to read a tokenizer. Tokenises nothing.
"""

from __future__ import annotations

from pathlib import Path

from engine.checkpoint.folder import JsonObject, read_json
from engine.checkpoint.refusals import DOWNLOAD_AGAIN, plain_file_size, refuse, unreadable

VOCAB, MERGES, CONFIG = "vocab.json", "merges.txt", "tokenizer_config.json"
CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
LARGEST = 64_000_000  # bytes of merges.txt; Qwen's has 1.7 MB
# How Qwen2 cuts a text into words (its published pattern).
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def older_tokenizer(folder: Path) -> JsonObject | None:
    """The content of a tokenizer.json, or None where the files are not there or name a tokenizer of
    another kind. Raises CheckpointError naming the file."""
    if not all((folder / name).is_file() for name in (VOCAB, MERGES, CONFIG)):
        return None
    config = read_json(folder / CONFIG)
    if config.get("tokenizer_class") not in CLASSES:
        return None
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": _added(config),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": read_json(folder / VOCAB),
            "merges": _merges(folder / MERGES),
        },
    }


def _added(config: JsonObject) -> list[JsonObject]:
    listed = config.get("added_tokens_decoder", {})
    added: list[JsonObject] = []
    for number, token in listed.items() if isinstance(listed, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not (number.isascii() and number.isdigit()):
            raise refuse(
                "checkpoint.tokenizer_invalid",
                f"{CONFIG}: added_tokens_decoder holds something that is not a token.",
                DOWNLOAD_AGAIN,
                file=CONFIG,
                item="added_tokens_decoder",
            )
        flags = {flag: bool(token.get(flag, False)) for flag in _FLAGS}
        added.append({"id": int(number), "content": content, **flags})
    return sorted(added, key=lambda token: int(str(token["id"])))


def _merges(path: Path) -> list[list[str]]:
    """Pairs in order of rank. A first line that begins with #version is a comment."""
    if plain_file_size(path) > LARGEST:
        raise _bad_merges("is larger than any tokenizer's")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path.name, error) from error
    merges: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise _bad_merges(f"line {number} is not a pair")
        merges.append(pair)
    return merges


def _bad_merges(problem: str) -> Exception:
    return refuse(
        "checkpoint.tokenizer_invalid",
        f"{MERGES}: {problem}.",
        DOWNLOAD_AGAIN,
        file=MERGES,
        item=MERGES,
    )
