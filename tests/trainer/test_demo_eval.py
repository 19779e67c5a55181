"""Evaluation of the demo: arms as text, figures by their definition, replies in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import RequestError
from trainer.data.skills import Example, generate_examples
from trainer.data.template import ChatEncoder
from trainer.demo_eval import Arm, Reply, answer, markdown, score


def test_an_arm_reads_and_names_itself_the_same_way() -> None:
    arm = Arm.read("nvfp4:0.9/0.8:heldout_templates")
    assert (arm.threshold, arm.editing, arm.split) == (0.9, 0.8, "heldout_templates")
    assert arm.name == "nvfp4:0.9/0.8:heldout_templates"
    off = Arm.read("bf16:0.95:heldout")
    assert off.settings.editing_threshold is None
    assert Arm.read("a:0.5/0:heldout").settings.editing_threshold == 0.0
    assert off.name == "bf16:0.95:heldout"


@pytest.mark.parametrize("text", ["nvfp4", "nvfp4:high:heldout", "nvfp4:0.9:train", "a:b:c:d"])
def test_an_arm_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        Arm.read(text)
    assert refused.value.code == "demo_eval.arm"


def _example(skill: str) -> Example:
    return Example(skill, "t/0", "p", "a", {"kind": "text"}, False)


def test_tpf_and_ceiling_are_tokens_over_forwards_and_over_blocks() -> None:
    examples = [_example("a"), _example("a"), _example("b")]
    replies = [
        Reply("", tokens=60, forwards=20, blocks=2, stopped=True),
        Reply("", tokens=40, forwards=30, blocks=2, stopped=False),
        Reply("", tokens=30, forwards=5, blocks=1, stopped=True),
    ]
    a, b, mean = score(examples, replies, [True, False, True])
    assert (a.skill, a.prompts, a.right) == ("a", 2, 0.5)
    assert (a.tokens, a.forwards, a.tpf, a.ceiling, a.stopped) == (50, 25, 2.0, 25.0, 0.5)
    assert b.right == 1.0
    assert mean.right == 0.75  # every skill counts the same
    assert mean.tpf == pytest.approx(130 / 55)
    table = markdown({"one": [a, b, mean], "two": [a, b, mean]})
    assert "| a | 2 | 50.0 | 50.0 | 25.0 | 2.00 | 25.00 | 50.0 |" in table
    assert "| all | 75.0 | 75.0 |" in table


class EchoEngine:
    """Stands for the engine: a reply is its prompt's ids; records the batches it was given."""

    info = SimpleNamespace(block_length=32, stop_ids=(1,))

    def __init__(self) -> None:
        self.batches: list[int] = []

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], settings: object, room: int, batch: int
    ) -> list[SimpleNamespace]:
        assert len(prompts) == batch
        self.batches.append(batch)
        return [
            SimpleNamespace(ids=(*prompt, 1), forwards=3, blocks=1, reason="stop_token")
            for prompt in prompts
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return ",".join(map(str, ids))


def test_replies_come_in_the_order_of_the_prompts_from_equal_batches(repo_root: Path) -> None:
    encoder = ChatEncoder.from_folder(repo_root / "assets" / "demo")
    examples = list(generate_examples(1, 0, 11, "train"))
    engine = EchoEngine()
    settings = Arm.read("x:0.9:heldout").settings
    replies = answer(engine, encoder, examples, settings, 4)  # pyright: ignore[reportArgumentType]
    assert engine.batches == [4, 4, 4]
    expected = encoder.encode_examples(examples)
    for reply, whole in zip(replies, expected, strict=True):
        prompt = whole.ids[: whole.prompt_length()]
        assert reply.text == ",".join(map(str, prompt))
        assert reply.tokens == len(prompt) + 1
        assert reply.stopped
