"""From a conversation to token ids, with the mask of what the model must learn to write.

The LLaDA2 layout: `<role>HUMAN</role>question<|role_end|><role>ASSISTANT</role>answer<|role_end|>`.
Contents are encoded as plain text: a special token typed inside a message never becomes a special
id. For contents without such text the ids agree with the chat template (a test).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.types import Message
from trainer.data.skills import Example
from trainer.data.tokenizer import END_OF_TEXT, MASK, ROLE, ROLE_CLOSE, ROLE_END

ROLE_NAMES = {"system": "SYSTEM", "user": "HUMAN", "assistant": "ASSISTANT"}


@dataclass(frozen=True)
class EncodedConversation:
    """ids and, position by position, whether it belongs to an answer (its `<|role_end|>` too)."""

    ids: list[int]
    answer: list[bool]

    def prompt_length(self) -> int:
        """Tokens before the first answer token."""
        return self.answer.index(True) if True in self.answer else len(self.ids)


class ChatEncoder:
    """Encodes conversations with one tokenizer. Safe to build once per process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # contents are plain text, whatever they hold
        self.end_of_text_id = self._special(END_OF_TEXT)
        self.mask_id = self._special(MASK)
        self.role_end_id = self._special(ROLE_END)
        opening, closing = self._special(ROLE), self._special(ROLE_CLOSE)
        self._headers = {
            role: [opening, *tokenizer.encode(name).ids, closing]
            for role, name in ROLE_NAMES.items()
        }

    @classmethod
    def from_folder(cls, folder: Path) -> ChatEncoder:
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def _special(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token}")
        return found

    @property
    def stop_ids(self) -> tuple[int, int]:
        return self.end_of_text_id, self.role_end_id

    def encode(self, messages: Sequence[Message]) -> EncodedConversation:
        """A whole conversation; every assistant message is an answer to learn."""
        contents = self.tokenizer.encode_batch_fast([message.content for message in messages])
        ids: list[int] = []
        answer: list[bool] = []
        for message, content in zip(messages, contents, strict=True):
            self._append(ids, answer, message.role, content.ids)
        return EncodedConversation(ids, answer)

    def _append(
        self, ids: list[int], answer: list[bool], role: str, content: Sequence[int]
    ) -> None:
        header = self._headers[role]
        ids += header
        ids += content
        ids.append(self.role_end_id)
        answer += [False] * len(header)
        answer += [role == "assistant"] * (len(content) + 1)

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The conversation so far and the header of the answer to come."""
        return self.encode(messages).ids + self._headers["assistant"]

    def encode_examples(self, examples: Iterable[Example]) -> list[EncodedConversation]:
        """One single-turn conversation per example, encoded in one batch."""
        texts: list[str] = []
        for example in examples:
            texts += (example.prompt, example.answer)
        contents = self.tokenizer.encode_batch_fast(texts)
        encoded = []
        for prompt, reply in zip(contents[::2], contents[1::2], strict=True):
            ids: list[int] = []
            answer: list[bool] = []
            self._append(ids, answer, "user", prompt.ids)
            self._append(ids, answer, "assistant", reply.ids)
            encoded.append(EncodedConversation(ids, answer))
        return encoded
