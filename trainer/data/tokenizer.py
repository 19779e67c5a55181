"""Trains the demo model's tokenizer on generated training text and writes its files.

Byte-level BPE in which every digit is its own token, words inside single quotes are spelled letter
by letter, and special tokens have the last ids as in LLaDA2. Knows the file formats of `tokenizers`
and `transformers`; refuses to know how a conversation becomes ids (`trainer.data.template`).

    python -m trainer.data.tokenizer --seed 0 --out assets/demo
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from trainer.data.skills import generate_examples

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
ROLE = "<role>"
ROLE_CLOSE = "</role>"
ROLE_END = "<|role_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, MASK, ROLE, ROLE_CLOSE, ROLE_END)

VOCAB_SIZE = 3072  # a multiple of 64, special tokens included
TRAINING_EXAMPLES = 20_000
MAX_LENGTH = 2048  # context of the demo model in tokens

# In order: a letter of a word in single quotes; a digit; a word with the space before it;
# punctuation with the space before it; white space, leaving one space to the word that follows.
PATTERN = (
    r"[A-Za-z](?<='[A-Za-z]{1,25})(?=[A-Za-z]{0,24}')"
    r"|\p{N}"
    r"| ?\p{L}+"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}"
    "{{- '<role>SYSTEM</role>' + message['content'] + '<|role_end|>' -}}"
    "{%- elif message['role'] == 'user' -%}"
    "{{- '<role>HUMAN</role>' + message['content'] + '<|role_end|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}"
    "{{- '<role>ASSISTANT</role>' + message['content'] + '<|role_end|>' -}}"
    "{%- else -%}"
    "{{- raise_exception('Unknown role: ' + message['role']) -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<role>ASSISTANT</role>' -}}{%- endif -%}"
)


def training_text(seed: int, count: int) -> Iterator[str]:
    """The first `count` training examples as conversations: role names, prompts and answers."""
    for example in generate_examples(seed, 0, count, "train"):
        yield from ("SYSTEM", "HUMAN", example.prompt, "ASSISTANT", example.answer)


def train(seed: int, count: int = TRAINING_EXAMPLES, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` entries; the same arguments give the same tokenizer.

    Raises ValueError when the text has too few merges for that size.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            Split(Regex(PATTERN), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    learned = vocab_size - len(SPECIAL_TOKENS)
    trainer = BpeTrainer(
        vocab_size=learned,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(seed, count), trainer)
    if tokenizer.get_vocab_size() != learned:
        raise ValueError(
            f"the text gave {tokenizer.get_vocab_size()} entries, {learned} were asked for"
        )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json` as `transformers` reads it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "additional_special_tokens": [ROLE, ROLE_CLOSE, ROLE_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=True)
    config = json.dumps(tokenizer_config(), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model's tokenizer.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the files to")
    parser.add_argument("--examples", type=int, default=TRAINING_EXAMPLES)
    arguments = parser.parse_args()
    save(train(arguments.seed, arguments.examples), arguments.out)


if __name__ == "__main__":
    main()
