"""What earlier versions kept in journals is read back, whatever happened to a file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend.chat_store.journal_reader import read_journal
from app.backend.chat_store.old_journals import import_journals
from app.backend.chat_store.store import ChatStore
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    Figures,
    MessageStatus,
)

FIGURES = Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)
PROMPT = ChatMessage("p", "user", "Frage: 漢字?\n  ```x```")
ANSWER = ChatMessage("a", "assistant", "", status=MessageStatus.ANSWERING, model="demo")
Record = dict[str, object]


def begin(created: float = 1000.0) -> Record:
    return {"kind": "conversation", "version": 1, "id": "talk", "created": created}


def prompt(message: ChatMessage = PROMPT) -> Record:
    return {"kind": "prompt", "id": message.id, "text": message.text, "time": 1.0}


def ended(message: ChatMessage) -> Record:
    return {
        "kind": "answer",
        "id": message.id,
        "text": message.text,
        "reason": message.reason,
        "figures": asdict(message.figures) if message.figures else None,
        "failure": asdict(message.failure) if message.failure else None,
    }


def partials(*texts: str) -> list[Record]:
    """Each says what it keeps of the one before, as they were written."""
    records: list[Record] = []
    for before, text in zip(("", *texts), texts, strict=False):
        pairs = enumerate(zip(before, text, strict=False))
        shorter = min(len(before), len(text))
        keep = next((n for n, (old, new) in pairs if old != new), shorter)
        records.append({"kind": "partial", "id": "a", "keep": keep, "tail": text[keep:]})
    return records


def write(folder: Path, *texts: str, more: tuple[Record, ...] = ()) -> Path:
    """`talk.jsonl`: a prompt, and an answer of which `texts` were written one after the other."""
    reply: Record = {"kind": "reply", "id": "a", "model": "demo", "time": 2.0}
    return put(folder, [begin(), prompt(), reply, *partials(*texts), *more])


def put(folder: Path, records: list[Record], name: str = "talk") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path = folder / f"{name}.jsonl"
    path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    return path


def read(folder: Path) -> Conversation:
    (path,) = folder.glob("*.jsonl")
    return read_journal(path)


def listed(folder: Path) -> list[str]:
    """What a store lists after it has taken the folder in."""
    store = ChatStore(folder.with_name(f"{folder.name}.db"))
    import_journals(store, folder, lambda: None)
    found = [entry.id for entry in store.entries()]
    store.close()
    return found


def test_a_whole_exchange_comes_back_as_it_was(tmp_path: Path) -> None:
    done = replace(
        ANSWER, text="one two three", status=MessageStatus.DONE, reason="length", figures=FIGURES
    )
    write(tmp_path, "one", "one two", more=(ended(done),))
    assert read(tmp_path).messages == (PROMPT, done)


def test_a_failure_comes_back_with_its_words(tmp_path: Path) -> None:
    failure = Failure("runtime.x", "It broke.", "Try again.", "generate")
    failed = replace(ANSWER, text="one", status=MessageStatus.FAILED, failure=failure)
    write(tmp_path, "one", more=(ended(failed),))
    assert read(tmp_path).messages[1] == failed


def test_an_answer_cut_off_by_a_kill_comes_back_interrupted_with_its_blocks(tmp_path: Path) -> None:
    write(tmp_path, "one", "one two", "onE three")
    answer = read(tmp_path).messages[1]
    assert answer.status is MessageStatus.INTERRUPTED
    assert answer.text == "onE three"


def test_a_prompt_without_an_answer_gets_a_place_for_one(tmp_path: Path) -> None:
    put(tmp_path, [begin(), prompt()])
    asked, answer = read(tmp_path).messages
    assert asked == PROMPT
    assert answer.status is MessageStatus.INTERRUPTED


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_record_loses_only_itself(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, "one", "one and two")
    again = json.dumps(prompt(ChatMessage("q", "user", "next")))  # written after the next start
    path.write_bytes(path.read_bytes()[:-cut] + b"\n" + again.encode() + b"\n")
    messages = read(tmp_path).messages
    assert messages[0] == PROMPT
    assert messages[1].text in ("one", "one and two")
    assert messages[2].text == "next"


def test_a_damaged_line_in_the_middle_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "one", "one two")
    lines = path.read_bytes().split(b"\n")
    lines.insert(2, b'{"kind": "partial", "id": "nobody", "keep": 0, "tail": ""}')
    lines.insert(2, b"\xff\xfe not json")
    path.write_bytes(b"\n".join(lines))
    assert read(tmp_path).messages[1].text == "one two"


def test_conversations_come_back_newest_first_and_empty_ones_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    for number in range(3):
        said = [prompt(replace(PROMPT, id=f"p{number}"))] if number < 2 else []
        put(folder, [begin(1000.0 + number), *said], f"talk{number}")
    assert listed(folder) == ["talk1", "talk0"]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads files of any mode"
)
def test_an_unreadable_conversation_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    path = write(folder, "one")
    path.chmod(0)
    try:
        assert listed(folder) == []
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read(folder).messages


@settings(max_examples=40)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_the_last_partial_is_what_comes_back(tmp_path_factory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write(folder, *texts)
    assert read(folder).messages[1].text == texts[-1]


def test_a_title_is_one_short_line() -> None:
    assert Conversation("c", 0.0).title == "New chat"
    long = ChatMessage("p", "user", "\n\n" + "word " * 40 + "\nsecond line")
    title = Conversation("c", 0.0, (long,)).title
    assert len(title) <= 60
    assert title.endswith("…")
    assert "\n" not in title


def test_a_damaged_first_line_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path, "one")
    path.write_bytes(b"\0\0\0" + path.read_bytes()[3:])
    talk = read(tmp_path)
    assert talk.id == "talk"
    assert talk.messages[0] == PROMPT


def test_a_copied_file_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    path = write(folder, "one")
    (folder / "copy.jsonl").write_bytes(path.read_bytes())
    assert set(listed(folder)) == {"talk", "copy"}


def test_a_journal_that_an_earlier_version_went_on_with_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    write(folder, "one")
    assert listed(folder) == ["talk"]
    write(folder, "one", "another")
    found = listed(folder)
    assert "talk" in found
    assert len(found) == 2
    store = ChatStore(tmp_path / "journals.db")
    texts = {(store.open(name) or Conversation("", 0.0)).messages[1].text for name in found}
    store.close()
    assert texts == {"one", "another"}
    assert sorted(p.name for p in (folder / "imported").iterdir()) == ["talk-2.jsonl", "talk.jsonl"]


ODD = (None, 5, -3, True, "z", [], {}, [1], {"a": 1}, float("inf"), float("nan"))


def test_no_damaged_record_keeps_the_others_from_being_read(tmp_path: Path) -> None:
    """Every field of every record replaced by every odd value, and odd values as whole records."""
    done = replace(ANSWER, text="two", status=MessageStatus.DONE, figures=FIGURES)
    path = write(tmp_path, "one", more=(ended(done),))
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
    path = write(tmp_path, "one")
    path.write_bytes(b"[" * 200_000 + b"\n" + path.read_bytes())
    assert read(tmp_path).messages[0] == PROMPT


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_the_conversations_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    assert listed(folder) == []
