"""Nothing typed and no finished block is lost, whatever happens to the process or the file."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend import conversations
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    Figures,
    Journal,
    MessageStatus,
)

FIGURES = Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)
TALK = Conversation("talk", 1000.0)
PROMPT = ChatMessage("p", "user", "Frage: 漢字?\n  ```x```")
ANSWER = ChatMessage("a", "assistant", "", status=MessageStatus.ANSWERING, model="demo")


def write(journal: Journal, *partials: str) -> None:
    journal.begin(TALK)
    journal.prompt("talk", PROMPT)
    journal.reply("talk", ANSWER)
    for text in partials:
        journal.partial("talk", "a", text)


def read(folder: Path) -> Conversation:
    (talk,) = Journal(folder).read_all()
    return talk


def test_a_whole_exchange_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, "one", "one two")
    done = replace(
        ANSWER, text="one two three", status=MessageStatus.DONE, reason="length", figures=FIGURES
    )
    journal.answer("talk", done)
    assert read(tmp_path).messages == (PROMPT, done)


def test_a_failure_comes_back_with_its_words(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write(journal, "one")
    failure = Failure("runtime.x", "It broke.", "Try again.", "generate")
    failed = replace(ANSWER, text="one", status=MessageStatus.FAILED, failure=failure)
    journal.answer("talk", failed)
    assert read(tmp_path).messages[1] == failed


def test_an_answer_cut_off_by_a_kill_comes_back_interrupted_with_its_blocks(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one", "one two", "onE three")
    answer = read(tmp_path).messages[1]
    assert answer.status is MessageStatus.INTERRUPTED
    assert answer.text == "onE three"


def test_a_prompt_without_an_answer_gets_a_place_for_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin(TALK)
    journal.prompt("talk", PROMPT)
    prompt, answer = read(tmp_path).messages
    assert prompt == PROMPT
    assert answer.status is MessageStatus.INTERRUPTED


def test_partials_grow_the_file_by_what_is_new(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    texts = ["x" * 100 * n for n in range(1, 101)]
    write(journal, *texts)
    assert (tmp_path / "talk.jsonl").stat().st_size < 40_000  # whole texts would be 500,000
    assert read(tmp_path).messages[1].text == texts[-1]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_record_loses_only_itself(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    write(journal, "one", "one and two")
    path = tmp_path / "talk.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(tmp_path)
    journal.prompt("talk", ChatMessage("q", "user", "next"))
    messages = read(tmp_path).messages
    assert messages[0] == PROMPT
    assert messages[1].text in ("one", "one and two")
    assert messages[2].text == "next"


def test_a_damaged_line_in_the_middle_is_skipped(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one", "one two")
    path = tmp_path / "talk.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines.insert(2, b'{"kind": "partial", "id": "nobody", "keep": 0, "tail": ""}')
    lines.insert(2, b"\xff\xfe not json")
    path.write_bytes(b"\n".join(lines))
    assert read(tmp_path).messages[1].text == "one two"


def test_conversations_come_back_newest_first_and_empty_ones_do_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        talk = Conversation(f"talk{number}", 1000.0 + number)
        journal.begin(talk)
        if number < 2:
            journal.prompt(talk.id, PROMPT)
    assert [talk.id for talk in journal.read_all()] == ["talk1", "talk0"]


def test_a_folder_that_cannot_be_written_is_a_sentence_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "conversations")
    write(journal, "one")
    assert journal.problem is not None
    assert "kept until the window is closed" in journal.problem
    assert journal.read_all() == []


def test_writing_again_takes_the_problem_back(tmp_path: Path) -> None:
    blocker = tmp_path / "conversations"
    blocker.write_text("in the way")
    journal = Journal(blocker)
    journal.begin(TALK)
    assert journal.problem is not None
    blocker.unlink()
    journal.begin(TALK)
    assert journal.problem is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads files of any mode"
)
def test_an_unreadable_conversation_is_left_alone(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one")
    path = tmp_path / "talk.jsonl"
    path.chmod(0)
    try:
        assert Journal(tmp_path).read_all() == []
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read(tmp_path).messages


def test_every_line_is_one_json_record(tmp_path: Path) -> None:
    write(Journal(tmp_path), "a\nb\u2028c")
    lines = (tmp_path / "talk.jsonl").read_bytes().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines if line]
    assert kinds == ["conversation", "prompt", "reply", "partial"]


@settings(max_examples=40)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_the_last_partial_is_what_comes_back(tmp_path_factory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write(Journal(folder), *texts)
    assert read(folder).messages[1].text == texts[-1]


def test_a_title_is_one_short_line() -> None:
    assert Conversation("c", 0.0).title == "New chat"
    long = ChatMessage("p", "user", "\n\n" + "word " * 40 + "\nsecond line")
    title = Conversation("c", 0.0, (long,)).title
    assert len(title) <= 60
    assert title.endswith("…")
    assert "\n" not in title


def test_what_could_not_be_written_is_written_once_the_folder_can_be(tmp_path: Path) -> None:
    blocker = tmp_path / "conversations"
    blocker.write_text("in the way")
    journal = Journal(blocker)
    write(journal, "one", "one two")
    assert journal.problem is not None
    blocker.unlink()
    journal.partial("talk", "a", "one two three")
    assert journal.problem is None
    prompt, answer = read(blocker).messages
    assert (prompt, answer.text) == (PROMPT, "one two three")


def test_a_write_that_was_cut_short_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    whole = conversations._write

    def disk_full(path: Path, lines: bytes) -> None:
        whole(path, lines[: len(lines) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conversations, "_write", disk_full)
    write(journal, "one", "one two")
    assert "No space left" in (journal.problem or "")
    monkeypatch.undo()
    journal.partial("talk", "a", "onE")
    prompt, answer = read(tmp_path).messages
    assert (prompt, answer.text) == (PROMPT, "onE")


def test_a_damaged_first_line_costs_only_itself(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one")
    path = tmp_path / "talk.jsonl"
    path.write_bytes(b"\0\0\0" + path.read_bytes()[3:])
    talk = read(tmp_path)
    assert talk.id == "talk"
    assert talk.messages[0] == PROMPT


def test_a_copied_file_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one")
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "talk.jsonl").read_bytes())
    assert {talk.id for talk in Journal(tmp_path).read_all()} == {"talk", "copy"}


ODD = (None, 5, -3, True, "z", [], {}, [1], {"a": 1}, float("inf"), float("nan"))


def test_no_damaged_record_keeps_the_others_from_being_read(tmp_path: Path) -> None:
    """Every field of every record replaced by every odd value, and odd values as whole records."""
    write(Journal(tmp_path), "one")
    done = replace(ANSWER, text="two", status=MessageStatus.DONE, figures=FIGURES)
    Journal(tmp_path).answer("talk", done)
    path = tmp_path / "talk.jsonl"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number, record in enumerate(records):
        for odd in (*({**record, field: odd} for field in record for odd in ODD), *ODD):
            changed = [*records[:number], odd, *records[number + 1 :]]
            path.write_text("\n".join(map(json.dumps, changed)) + "\n")
            talk = read(tmp_path)
            for message in talk.messages:
                assert isinstance(message.id, str), changed
                assert isinstance(message.text, str), changed
                assert message.figures is None or message.figures.tpf > -1, changed
            assert talk.title, changed


def test_a_record_nested_without_end_is_skipped(tmp_path: Path) -> None:
    write(Journal(tmp_path), "one")
    path = tmp_path / "talk.jsonl"
    path.write_bytes(b"[" * 200_000 + b"\n" + path.read_bytes())
    assert read(tmp_path).messages[0] == PROMPT


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_the_conversations_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert Journal(tmp_path).read_all() == []
