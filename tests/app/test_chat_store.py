"""Nothing typed and no finished block is lost, whatever happens to the process or the file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend.chat_store import schema
from app.backend.chat_store.schema import MIGRATIONS, VERSION, migrate, open_database
from app.backend.chat_store.search import Hit, search
from app.backend.chat_store.store import DELETED_DAYS, ChatStore
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    Figures,
    Made,
    MessageStatus,
)
from engine.types import DecodeSettings

REPO = Path(__file__).resolve().parents[2]
FIGURES = Figures(12, 4, 1, 0.5, 0.2, 3.0, 12.0, 24.0)
MADE = Made("demo", "/models/demo", "abc", "NVFP4", "cpu", "eager", 256, asdict(DecodeSettings()))
TALK = Conversation("talk", 1000.0)
PROMPT = ChatMessage("p", "user", "Frage: 漢字?\n  ```x```")
ANSWER = ChatMessage("a", "assistant", "", status=MessageStatus.ANSWERING, model="demo", made=MADE)
DONE = replace(ANSWER, text="One two.", status=MessageStatus.DONE, figures=FIGURES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ein Ordner" / "conversations.db"


def write(store: ChatStore, *partials: str) -> None:
    store.begin(TALK)
    store.prompt("talk", PROMPT, None)
    store.reply("talk", ANSWER, "p")
    for text in partials:
        store.partial("talk", "a", text)


def reopened(store: ChatStore) -> ChatStore:
    store.close()
    return ChatStore(store.path)


def messages(store: ChatStore) -> tuple[ChatMessage, ...]:
    talk = store.open("talk")
    assert talk is not None
    return talk.messages


def test_a_whole_exchange_comes_back_as_it_was(path: Path) -> None:
    store = ChatStore(path)
    write(store, "one", "one two")
    failed = replace(DONE, failure=Failure("a.b", "It broke.", "Again.", "generate"))
    failed = replace(failed, status=MessageStatus.FAILED)
    for answer in (DONE, failed):
        store.answer("talk", answer, "p")
        store = reopened(store)
        assert messages(store) == (PROMPT, answer)
    store.close()


def test_an_answer_cut_off_comes_back_interrupted_with_its_blocks(path: Path) -> None:
    store = ChatStore(path)
    write(store, "one", "one two", "onE")
    prompt, answer = messages(reopened(store))
    assert prompt == PROMPT
    assert answer == replace(ANSWER, text="onE", status=MessageStatus.INTERRUPTED)


def test_a_prompt_without_an_answer_gets_a_place_for_one(path: Path) -> None:
    store = ChatStore(path)
    store.begin(TALK)
    store.prompt("talk", PROMPT, None)
    prompt, answer = messages(reopened(store))
    assert (prompt, answer.status) == (PROMPT, MessageStatus.INTERRUPTED)


KILLED = """
import sys
from pathlib import Path
from app.backend.chat_store.store import ChatStore
from app.backend.conversations import ChatMessage, Conversation, MessageStatus
store = ChatStore(Path(sys.argv[1]))
store.begin(Conversation("talk", 1.0))
store.prompt("talk", ChatMessage("p", "user", "Why?"), None)
store.reply("talk", ChatMessage("a", "assistant", "", MessageStatus.ANSWERING), "p")
text = ""
for number in range(100000):
    text += f"{number} "
    store.partial("talk", "a", text)
    print(number, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
@pytest.mark.parametrize("after", [0, 3, 40])
def test_what_was_said_to_be_kept_survives_kill_9(path: Path, after: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], cwd=REPO, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < after:
            pass
        os.kill(process.pid, signal.SIGKILL)
        told = [after, *(int(line) for line in process.stdout if line.endswith("\n"))]
    store = ChatStore(path)
    prompt, answer = messages(store)
    assert prompt.text == "Why?"
    assert answer.status is MessageStatus.INTERRUPTED
    numbers = list(map(int, answer.text.split()))
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > max(told)
    store.close()


def test_every_text_comes_back_exactly(path: Path) -> None:
    store = ChatStore(path)
    for number, text in enumerate(("\0a\0", "\ud83d", "a\r\nb\u2028", "🙂" * 1000, "")):
        talk = f"talk{number}"
        store.begin(Conversation(talk, 1.0))
        store.prompt(talk, ChatMessage("p", "user", text), None)
    store = reopened(store)
    for number, text in enumerate(("\0a\0", "\ud83d", "a\r\nb\u2028", "🙂" * 1000, "")):
        found = store.open(f"talk{number}")
        assert found is not None
        assert found.messages[0].text == text
    store.close()


def test_what_was_edited_or_asked_again_stands_beside_what_it_replaces(path: Path) -> None:
    store = ChatStore(path)
    write(store)
    store.answer("talk", DONE, "p")
    again = replace(DONE, id="b", text="Other.")
    store.reply("talk", again, "p")
    store.answer("talk", again, "p")
    talk = store.open("talk")
    assert talk is not None
    assert talk.messages == (PROMPT, again)
    assert talk.siblings == {"b": ("a", "b")}
    store.prompt("talk", replace(PROMPT, id="q", text="Edited"), None)
    talk = store.open("talk")
    assert talk is not None
    assert [m.text for m in talk.messages] == ["Edited", ""]
    assert talk.siblings["q"] == ("p", "q")
    assert store.tree("talk").newest_leaf("p") == "b"
    store.show_branch("talk", "a")
    assert messages(reopened(store)) == (PROMPT, DONE)


def test_lists_are_pinned_first_then_newest_and_deleting_can_be_undone(path: Path) -> None:
    store = ChatStore(path)
    for number in range(4):
        store.begin(Conversation(f"c{number}", float(number)))
        if number:
            store.prompt(f"c{number}", ChatMessage("p", "user", f"\n Prompt {number}\nmore"), None)
    store.pin("c1", True)
    store.rename("c2", "My name")
    assert [(e.id, e.title) for e in store.entries()] == [
        ("c1", "Prompt 1"),
        ("c3", "Prompt 3"),
        ("c2", "My name"),
    ]
    store.delete("c3")
    store = reopened(store)
    assert [e.id for e in store.entries()] == ["c1", "c2"]
    assert [e.id for e in store.deleted()] == ["c3"]
    store.restore("c3")
    assert [e.id for e in store.entries()] == ["c1", "c3", "c2"]
    store.close()


def test_what_was_deleted_long_ago_is_removed_with_its_messages(path: Path) -> None:
    store = ChatStore(path)
    write(store)
    store.delete("talk")
    (row,) = store.rows("SELECT deleted FROM conversations")
    deleted = row[0]
    assert isinstance(deleted, float)
    store.purge(deleted + DELETED_DAYS * 86400 - 1)
    assert len(store.deleted()) == 1
    store.purge(deleted + DELETED_DAYS * 86400 + 1)
    assert store.deleted() == []
    assert store.rows("SELECT * FROM messages") == []
    assert search(store, "Frage") == []
    store.close()


def test_a_folder_that_cannot_be_written_is_a_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.write_text("in the way")
    store = ChatStore(blocker / "conversations.db")
    write(store, "one")
    assert "kept until the window is closed" in (store.problem or "")
    assert store.entries() == []
    blocker.unlink()
    store.partial("talk", "a", "one two")
    assert store.problem is None
    prompt, answer = messages(reopened(store))
    assert (prompt, answer.text) == (PROMPT, "one two")


def test_a_change_that_failed_half_way_is_made_whole_by_the_next(path: Path) -> None:
    store = ChatStore(path)
    write(store)
    store.change([("UPDATE messages SET text = 'half'", ()), ("nonsense", ())])
    assert store.problem is not None
    assert messages(ChatStore(path))[1].text == ""
    store.close()


def test_a_full_disk_is_said_and_made_good(path: Path) -> None:
    limited = open_database(path)
    limited.execute(f"PRAGMA max_page_count = {limited.execute('PRAGMA page_count').fetchone()[0]}")
    store = ChatStore(path, opener=lambda _: limited)
    write(store)
    store.partial("talk", "a", "long " * 20_000)
    assert "full" in (store.problem or "")
    limited.execute("PRAGMA max_page_count = 100000")
    store.partial("talk", "a", "long " * 20_001)
    assert store.problem is None
    assert messages(store)[1].text == "long " * 20_001
    store.close()


@pytest.mark.parametrize(
    "damage", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_file_is_kept_aside_and_said(path: Path, damage: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    store = ChatStore(path)
    assert "damaged" in (store.notice or "")
    (aside,) = path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == damage
    write(store, "one")
    assert store.problem is None
    assert messages(reopened(store))[1].text == "one"


def test_a_file_of_a_newer_unblur_is_left_alone(path: Path) -> None:
    database = open_database(path)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    before = path.read_bytes()
    store = ChatStore(path)
    write(store, "one")
    assert "newer Unblur" in (store.problem or "")
    assert path.read_bytes() == before
    store.close()


@pytest.mark.parametrize("version", range(VERSION))
def test_a_file_of_every_earlier_version_is_migrated_with_all_it_holds(
    path: Path, version: int
) -> None:
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path, isolation_level=None)
    for step in range(version):
        migrate(database, step)
    if version:
        database.execute("INSERT INTO conversations (id, created) VALUES ('talk', 5.0)")
        sql = "INSERT INTO messages (conversation, id, parent, role, text, status, time)"
        database.execute(f"{sql} VALUES ('talk', 'p', NULL, 'user', 'Where is it?', 'done', 5.0)")
        database.execute(f"{sql} VALUES ('talk', 'a', 'p', 'assistant', 'Here.', 'done', 6.0)")
    database.close()
    store = ChatStore(path)
    assert store.rows("PRAGMA user_version") == [(VERSION,)]
    if version:
        assert [m.text for m in messages(store)] == ["Where is it?", "Here."]
        assert search(store, "where") == [Hit("talk", "Where is it?")]
    write(store, "one")
    assert store.problem is None
    store.close()


def test_a_migration_is_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path, isolation_level=None)
    migrate(database, 0)
    broken = (MIGRATIONS[0], MIGRATIONS[1] + "nonsense;")
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(sqlite3.Error):
        migrate(database, 1)
    monkeypatch.undo()
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    migrate(database, 1)
    assert database.execute("PRAGMA user_version").fetchone() == (2,)
    database.close()


ODD = (
    None,
    5,
    -3.5,
    "z",
    "[]",
    "{",
    '{"a": 1}',
    "[" * 100_000,
    b"\xff\xfe",
    "NaN",
    '{"tokens": 1e999}',
)
FIELDS = ["parent", "role", "text", "status", "model", "reason", "figures", "failure", "made"]


def test_no_damaged_field_keeps_a_message_from_being_read(path: Path) -> None:
    store = ChatStore(path)
    write(store)
    store.answer("talk", DONE, "p")
    database = sqlite3.connect(path, isolation_level=None)
    refused = 0
    for field in FIELDS:
        for odd in ODD:
            store.answer("talk", DONE, "p")
            try:
                database.execute(f"UPDATE messages SET {field} = ? WHERE id = 'a'", (odd,))
            except sqlite3.Error:  # the schema is strict
                refused += 1
                continue
            for message in messages(store):
                assert isinstance(message.text, str), (field, odd)
                assert message.figures is None or message.figures == FIGURES, (field, odd)
    assert refused < len(FIELDS) * len(ODD) / 2
    database.close()
    store.close()


@pytest.mark.parametrize(
    ("words", "passage"),
    [
        ("rücken", "Der Rücken tut weh"),
        ("TUT weh", "Der Rücken tut weh"),
        ("ück", "Der Rücken tut weh"),
        ("漢字", "日本の漢字を読む"),
        ("漢", "日本の漢字を読む"),
        ('say "hi"', 'They say "hi" and % and _'),
        ("%", 'They say "hi" and % and _'),
        ("_", 'They say "hi" and % and _'),
        ("mañ", "mañana"),
    ],
)
def test_what_was_said_is_found_by_any_part(path: Path, words: str, passage: str) -> None:
    store = ChatStore(path)
    for number, text in enumerate(
        ("Der Rücken tut weh", "日本の漢字を読む", 'They say "hi" and % and _', "mañana")
    ):
        store.begin(Conversation(f"c{number}", float(number)))
        store.prompt(f"c{number}", ChatMessage("p", "user", text), None)
    assert [hit.passage for hit in search(store, words)] == [passage]
    assert search(store, f"{words} nowhere") == []
    store.close()


def test_answers_cut_off_and_titles_are_found_and_deleted_ones_are_not(path: Path) -> None:
    store = ChatStore(path)
    write(store, "a partial thought")
    store = reopened(store)
    assert [hit.conversation for hit in search(store, "partial")] == ["talk"]
    store.answer("talk", DONE, "p")
    assert search(store, "partial") == []
    store.rename("talk", "Renamed thing")
    assert search(store, "renamed") == [Hit("talk", "")]
    store.delete("talk")
    assert search(store, "renamed") == []
    store.close()


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=12))
def test_any_words_can_be_looked_for(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    store = ChatStore(tmp_path_factory.mktemp("search") / "c.db")
    write(store)
    search(store, text)
    assert store.problem is None
    store.close()


def test_threads_write_at_once(path: Path) -> None:
    store = ChatStore(path)

    def work(name: str) -> None:
        store.begin(Conversation(name, 1.0))
        for number in range(30):
            store.prompt(name, ChatMessage(str(number), "user", name), None)
            store.sync()

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.problem is None
    assert store.rows("SELECT count(*) FROM messages") == [(120,)]
    store.close()
