"""Conversations exported and taken in again without loss; journals of earlier versions, too."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app.backend.chat_store.exchange import export, import_file, read_whole
from app.backend.chat_store.journal_reader import read_journal
from app.backend.chat_store.old_journals import import_journals
from app.backend.chat_store.store import ChatStore
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    Figures,
    Made,
    MessageStatus,
)
from engine.errors import UnblurError
from engine.types import DecodeSettings

MADE = Made("demo", "/models/demo", "abc", "NVFP4", "cpu", "eager", 256, asdict(DecodeSettings()))
FAILURE = Failure("a.b", "It broke.", "Again.", "generate")
DONE = MessageStatus.DONE


def filled(path: Path) -> ChatStore:
    """Two conversations, with branches, odd texts and every field in use."""
    store = ChatStore(path)
    store.begin(Conversation("one", 1000.5))
    store.prompt("one", ChatMessage("p", "user", "What? 漢字\ud83d\0"), None)
    figures = Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)
    answer = ChatMessage("a", "assistant", "**This**", DONE, "demo", "length", figures, None, MADE)
    store.answer("one", answer, "p")
    failed = replace(answer, id="b", status=MessageStatus.FAILED, failure=FAILURE)
    store.answer("one", failed, "p")
    store.prompt("one", ChatMessage("q", "user", "Edited"), None)
    store.show_branch("one", "a")
    store.pin("one", True)
    store.begin(Conversation("two", 2000.0, name="Second"))
    store.prompt("two", ChatMessage("p", "user", "Cut off"), None)
    store.reply("two", ChatMessage("a", "assistant", "ha", MessageStatus.ANSWERING), "p")
    return store


def wholes(store: ChatStore) -> list[object]:
    return [read_whole(store, entry.id) for entry in store.entries()]


def test_json_goes_round_without_loss(tmp_path: Path) -> None:
    store, other = filled(tmp_path / "a.db"), ChatStore(tmp_path / "b.db")
    file = tmp_path / "out" / "all.json"
    assert export(store, [e.id for e in store.entries()], file) == 2
    assert import_file(other, file) == (2, 0)
    assert wholes(other) == wholes(store)
    assert len(wholes(other)) == 2
    again = tmp_path / "again.json"
    export(other, [e.id for e in other.entries()], again)
    assert again.read_bytes() == file.read_bytes()
    assert import_file(other, file) == (0, 2)  # nothing twice
    other.answer("one", ChatMessage("c", "assistant", "more", DONE), "q")
    assert import_file(other, file) == (1, 1)  # a conversation that went on is not overwritten
    assert len(other.entries()) == 3
    store.close()
    other.close()


def test_importing_what_was_deleted_brings_it_back(tmp_path: Path) -> None:
    store = filled(tmp_path / "a.db")
    export(store, ["one"], tmp_path / "one.json")
    store.delete("one")
    assert import_file(store, tmp_path / "one.json") == (0, 1)
    assert [e.id for e in store.entries()] == ["one", "two"]
    store.close()


def test_markdown_has_the_shown_branch_with_its_exact_source(tmp_path: Path) -> None:
    store = filled(tmp_path / "a.db")
    export(store, ["one", "two"], tmp_path / "all.md")
    text = (tmp_path / "all.md").read_text("utf-8")
    assert "# What? 漢字" in text
    assert "\n## demo\n\n**This**\n" in text
    assert "# Second" in text
    assert "Edited" not in text
    store.close()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    store = filled(tmp_path / "a.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnblurError, match="cannot be written") as refused:
        export(store, ["one"], tmp_path / "file" / "x.json")
    assert refused.value.code == "chats.export"
    store.close()


def test_every_odd_value_in_an_export_is_taken_or_refused_whole(tmp_path: Path) -> None:
    store = filled(tmp_path / "a.db")
    file = tmp_path / "x.json"
    export(store, ["one"], file)
    good = json.loads(file.read_text())
    odd = (None, 5, -1.5, True, "z", "", [], {}, [1], {"a": 1}, "\ud800", "\0", 10**400)
    refused = 0
    for place in places(good):
        for value in odd:
            document = json.loads(file.read_text())
            put(document, place, value)
            file_odd = tmp_path / "odd.json"
            file_odd.write_text(json.dumps(document))
            other = ChatStore(tmp_path / "other.db")
            try:
                import_file(other, file_odd)
            except UnblurError as error:
                refused += error.code == "chats.import" and other.entries() == []
            assert other.problem is None
            for entry in other.entries():
                other.open(entry.id)
                other.rows("DELETE FROM conversations")
            other.close()
    assert refused > 100
    store.close()


def places(value: object, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every key and index in a document, but for inner settings."""
    found: list[tuple[object, ...]] = [at] if at else []
    if isinstance(value, dict):
        inner = value.items() if at[-1:] != ("settings",) else ()
        for key, each in inner:
            found += places(each, (*at, key))
    elif isinstance(value, list):
        for index, each in enumerate(value[:2]):
            found += places(each, (*at, index))
    return found


def put(document: object, place: tuple[object, ...], value: object) -> None:
    for step in place[:-1]:
        document = document[step]  # type: ignore[index]
    document[place[-1]] = value  # type: ignore[index]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff\xfe", b"[" * 200_000, b'{"format": "unblur.conversations"}', b"null"],
)
def test_files_that_are_no_export_are_refused_in_words(tmp_path: Path, data: bytes) -> None:
    store = ChatStore(tmp_path / "a.db")
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(UnblurError, match=r"x\.json cannot be imported") as refused:
        import_file(store, tmp_path / "x.json")
    assert refused.value.code == "chats.import"
    assert store.entries() == []
    store.close()


# journals


def journal(folder: Path, name: str, *records: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


BEGUN = {"kind": "conversation", "version": 1, "id": "talk", "created": 1000.0}
PROMPT = {"kind": "prompt", "id": "p", "text": "漢字?", "time": 1.0}
REPLY = {"kind": "reply", "id": "a", "model": "demo", "time": 2.0}
PARTIAL = {"kind": "partial", "id": "a", "keep": 0, "tail": "one two"}
ENDED = {"kind": "answer", "id": "a", "text": "one two three", "reason": "length"}
ENDED |= {"figures": asdict(Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)), "failure": None}


def nothing() -> None: ...


def test_journals_are_taken_in_once_and_moved_aside_when_proven(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    path = journal(folder, "talk", BEGUN, PROMPT, REPLY, PARTIAL, ENDED)
    data = path.read_bytes()
    store = ChatStore(tmp_path / "a.db")
    assert import_journals(store, folder, nothing) == 1
    talk = store.open("talk")
    assert talk is not None
    assert talk.created == 1000.0
    assert [m.text for m in talk.messages] == ["漢字?", "one two three"]
    assert talk.messages[1].figures == Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)
    assert not path.exists()
    assert (folder / "imported" / path.name).read_bytes() == data
    path.write_bytes(data)  # restored from a back-up: it is not taken in twice
    import_journals(store, folder, nothing)
    assert len(store.entries()) == 1
    store.close()


def test_an_answer_that_was_cut_off_is_taken_in_as_far_as_it_came(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    torn = '{"kind": "partial", "id": "a", "ke'
    journal(folder, "talk", BEGUN, "\x00\xffdamaged", PROMPT, REPLY, PARTIAL, torn)
    store = ChatStore(tmp_path / "a.db")
    assert import_journals(store, folder, nothing) == 1
    talk = store.open("talk")
    assert talk is not None
    assert talk.messages[1].text == "one two"
    assert talk.messages[1].status is MessageStatus.INTERRUPTED
    store.close()


def test_a_prompt_that_was_never_answered_is_taken_in(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    journal(folder, "talk", BEGUN, PROMPT)
    store = ChatStore(tmp_path / "a.db")
    assert import_journals(store, folder, nothing) == 1
    talk = store.open("talk")
    assert talk is not None
    assert [m.role for m in talk.messages] == ["user", "assistant"]
    store.close()


def test_a_journal_stays_where_it_cannot_be_kept_or_read(tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    path = journal(folder, "talk", BEGUN, PROMPT)
    empty = journal(folder, "empty", "nothing that can be read")
    (tmp_path / "file").write_text("in the way")
    blocked = ChatStore(tmp_path / "file" / "a.db")
    assert import_journals(blocked, folder, nothing) == 0
    assert path.exists()
    store = ChatStore(tmp_path / "a.db")
    assert import_journals(store, folder, nothing) == 1
    assert empty.exists()
    assert [e.id for e in store.entries()] == ["talk"]
    store.close()


ODD = (None, 5, -3, True, "z", [], {}, [1], {"a": 1}, float("inf"), float("nan"))


def test_no_damaged_record_of_a_journal_keeps_the_others_from_being_read(tmp_path: Path) -> None:
    """Every field of every record replaced by every odd value, and odd values as whole records."""
    records = [BEGUN, PROMPT, REPLY, PARTIAL, ENDED]
    for number, record in enumerate(records):
        for odd in (*({**record, field: odd} for field in record for odd in ODD), *ODD):
            changed = [*records[:number], odd, *records[number + 1 :]]
            talk = read_journal(journal(tmp_path, "talk", *changed))
            for message in talk.messages:
                assert isinstance(message.id, str), changed
                assert isinstance(message.text, str), changed
                assert message.figures is None or message.figures.tpf > -1, changed
            assert talk.title, changed
