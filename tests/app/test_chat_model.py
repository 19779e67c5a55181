"""Sending, answering, stopping and starting afresh, without a widget in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytestqt.qtbot import QtBot

from app.backend.chat_store.store import ChatStore
from app.backend.conversations import ChatMessage, Conversation, MessageStatus
from app.backend.files import AppFolders
from app.backend.settings import SettingsStore
from app.models.chat import ChatModel, history
from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from engine.errors import RequestError
from engine.fake import DEFAULT_ANSWER, FakeLoader, FakeScript

Make = Callable[..., ChatModel]


@pytest.fixture
def make(qtbot: QtBot, folders: AppFolders) -> Iterator[Make]:
    made: list[ChatModel] = []

    def build(loader: FakeLoader | None = None, loaded: bool = True) -> ChatModel:
        engine = EngineModel(loader or FakeLoader(FakeScript(seconds_per_step=0.002)))
        settings = SettingsStore(folders.settings_file)
        chat = ChatModel(engine, ChatStore(folders.conversations), settings)
        made.append(chat)
        if loaded:
            engine.load("somewhere")
            qtbot.waitUntil(lambda: engine.state is Lifecycle.READY)
        return chat

    yield build
    for chat in made:
        chat.engine.close()
        chat.close()
        chat.engine.deleteLater()
        chat.deleteLater()


def wait_for_answer(qtbot: QtBot, chat: ChatModel) -> ChatMessage:
    qtbot.waitUntil(lambda: not chat.engine.busy and not chat.answering_here, timeout=5000)
    return chat.current.messages[-1]


def on_disk(folders: AppFolders) -> list[Conversation]:
    store = ChatStore(folders.conversations)
    found = [store.open(entry.id) for entry in store.entries()]
    store.close()
    return [conversation for conversation in found if conversation is not None]


def test_a_prompt_is_answered_and_both_are_kept(
    make: Make, qtbot: QtBot, folders: AppFolders
) -> None:
    chat = make()
    assert chat.send("hello")
    answer = wait_for_answer(qtbot, chat)
    assert answer.text == DEFAULT_ANSWER
    assert answer.status is MessageStatus.DONE
    assert answer.figures is not None
    assert answer.model == "scripted demo"
    assert on_disk(folders) == [chat.current]


def test_the_prompt_is_on_disk_before_the_answer_starts(make: Make, folders: AppFolders) -> None:
    chat = make()
    chat.send("do not lose me")
    (talk,) = on_disk(folders)
    assert talk.messages[0].text == "do not lose me"


@pytest.mark.parametrize("text", ["", "   ", "\n\t\n"])
def test_an_empty_prompt_is_blocked_with_its_reason(make: Make, text: str) -> None:
    chat = make()
    assert chat.blocked_reason(text) == "Type something to send."
    assert not chat.send(text)
    assert chat.current.messages == ()


def test_nothing_can_be_sent_without_a_model(make: Make) -> None:
    chat = make(loaded=False)
    assert "No model" in (chat.blocked_reason("hello") or "")
    assert not chat.send("hello")


def test_stop_leaves_a_load_alone_that_no_prompt_waits_for(make: Make, qtbot: QtBot) -> None:
    chat = make(FakeLoader(chunks=4, seconds_per_chunk=0.02), loaded=False)
    chat.engine.load("somewhere")
    chat.stop()
    assert chat.engine.state is Lifecycle.LOADING
    qtbot.waitUntil(lambda: chat.engine.state is Lifecycle.READY)


def test_a_prompt_sent_while_loading_is_answered_when_ready(make: Make, qtbot: QtBot) -> None:
    chat = make(FakeLoader(chunks=4, seconds_per_chunk=0.05), loaded=False)
    chat.engine.load("somewhere")
    assert chat.send("hello")
    assert chat.current.messages[-1].status is MessageStatus.WAITING
    assert "not finished" in (chat.blocked_reason("again") or "")
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER


def test_a_prompt_sent_while_loading_is_not_lost_when_the_load_fails(
    make: Make, qtbot: QtBot, folders: AppFolders
) -> None:
    loader = FakeLoader(seconds_per_chunk=0.02, error=MemoryError())
    chat = make(loader, loaded=False)
    chat.engine.load("somewhere")
    chat.send("hello")
    answer = wait_for_answer(qtbot, chat)
    assert answer.status is MessageStatus.FAILED
    assert answer.failure is not None
    assert answer.failure.code == "load.no_model"
    assert on_disk(folders)[0].messages[0].text == "hello"
    loader.error = None
    chat.engine.load("somewhere")
    qtbot.waitUntil(lambda: chat.engine.state is Lifecycle.READY)
    chat.retry(answer.id)
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER


def test_a_prompt_that_is_too_long_fails_in_words_and_the_next_one_works(
    make: Make, qtbot: QtBot
) -> None:
    chat = make(FakeLoader(FakeScript(context=200)))
    chat.send("word " * 300)
    failed = wait_for_answer(qtbot, chat)
    assert failed.failure is not None
    assert failed.failure.code == "request.too_long"
    assert "200 at most" in failed.failure.message
    assert chat.prompt_of(failed.id) == "word " * 300
    chat.send("short")
    assert wait_for_answer(qtbot, chat).status is MessageStatus.DONE


def test_new_chat_while_answering_stops_and_keeps_what_was_written(
    make: Make, qtbot: QtBot
) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.02))
    chat = make(loader)
    chat.send("first")
    first = chat.current.id
    qtbot.waitUntil(lambda: loader.engines[0].steps_taken > 10)
    chat.new_chat()
    assert chat.current.messages == ()
    assert chat.blocked_reason("second") is None  # one need not wait for the stop
    assert chat.send("second")
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER
    old = next(c for c in chat.conversations if c.id == first)
    assert old.messages[-1].reason == "stopped"
    assert DEFAULT_ANSWER.startswith(old.messages[-1].text)
    assert [c.title for c in chat.conversations] == ["second", "first"]


def test_new_chat_while_loading_does_not_stop_the_load(make: Make, qtbot: QtBot) -> None:
    chat = make(FakeLoader(chunks=4, seconds_per_chunk=0.05), loaded=False)
    chat.engine.load("somewhere")
    chat.send("first")
    chat.new_chat()
    qtbot.waitUntil(lambda: chat.engine.state is Lifecycle.READY and not chat._asked, timeout=5000)
    assert chat.conversations[0].messages[-1].text == DEFAULT_ANSWER


def test_an_answer_goes_on_while_another_conversation_is_read(make: Make, qtbot: QtBot) -> None:
    chat = make(FakeLoader(FakeScript(seconds_per_step=0.005)))
    chat.send("first")
    wait_for_answer(qtbot, chat)
    first = chat.current.id
    chat.new_chat()
    chat.send("second")
    second = chat.current.id
    chat.select(first)
    assert chat.current.id == first
    qtbot.waitUntil(lambda: chat.engine.state is Lifecycle.READY, timeout=5000)
    chat.select(second)
    assert chat.current.messages[-1].text == DEFAULT_ANSWER


def test_history_holds_what_worked_and_leaves_failures_out() -> None:
    def exchange(number: int, status: MessageStatus, text: str) -> tuple[ChatMessage, ChatMessage]:
        return (
            ChatMessage(f"p{number}", "user", f"prompt {number}"),
            ChatMessage(f"a{number}", "assistant", text, status=status),
        )

    messages = (
        *exchange(1, MessageStatus.DONE, "answer 1"),
        *exchange(2, MessageStatus.FAILED, "half of"),
        *exchange(3, MessageStatus.INTERRUPTED, "some"),
        *exchange(4, MessageStatus.DONE, ""),
        *exchange(5, MessageStatus.WAITING, ""),
        *exchange(6, MessageStatus.DONE, "later"),
    )
    talk = Conversation("c", 0.0, messages)
    sent = [(m.role, m.content) for m in history(talk, "a5")]
    assert sent == [
        ("user", "prompt 1"),
        ("assistant", "answer 1"),
        ("user", "prompt 3"),
        ("assistant", "some"),
        ("user", "prompt 5"),
    ]


def test_the_length_setting_reaches_the_engine(make: Make, qtbot: QtBot) -> None:
    loader = FakeLoader()
    chat = make(loader)
    chat._settings.change(answer_tokens=40)
    chat.send("hello")
    answer = wait_for_answer(qtbot, chat)
    assert loader.engines[0].requests[-1].max_new_tokens == 40
    assert answer.reason == "length"


def test_conversations_that_cannot_be_saved_are_said_once_and_go_on(
    qtbot: QtBot, make: Make, folders: AppFolders
) -> None:
    folders.data.parent.mkdir(parents=True, exist_ok=True)
    folders.data.write_text("a file where the folder should be")
    chat = make()
    said: list[str | None] = []
    chat.problem_changed.connect(lambda: said.append(chat.problem))
    chat.send("hello")
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER
    assert len(said) == 1
    assert "kept until the window is closed" in (said[0] or "")


def test_a_request_error_of_the_engine_is_not_the_engines_end(make: Make, qtbot: QtBot) -> None:
    error = RequestError("request.settings", "The setting is out of range.", "Change it.")
    loader = FakeLoader(FakeScript(fail_at=(0, 0), error=error))
    chat = make(loader)
    chat.send("hello")
    assert wait_for_answer(qtbot, chat).status is MessageStatus.FAILED
    assert chat.engine.state is Lifecycle.READY


def test_a_prompt_that_waits_for_a_stopped_load_is_not_forgotten_for_the_next(
    make: Make, qtbot: QtBot
) -> None:
    chat = make(FakeLoader(chunks=50, seconds_per_chunk=0.02), loaded=False)
    chat.engine.load("somewhere")
    chat.send("first")
    first = chat.current.id
    chat.stop()
    chat.new_chat()
    assert chat.engine.state is Lifecycle.STOPPING
    assert not chat.send("second")
    qtbot.waitUntil(lambda: not chat.engine.busy)
    (conversation,) = chat.conversations
    assert conversation.id == first
    assert conversation.messages[-1].status is MessageStatus.FAILED


def test_another_folder_opened_in_mid_answer_is_loaded_before_the_next_answer(
    make: Make, qtbot: QtBot
) -> None:
    loader = FakeLoader(FakeScript(seconds_per_step=0.02))
    chat = make(loader)
    chat.send("first")
    chat.new_chat()  # stops it
    assert chat.send("second")
    chat.engine.load("elsewhere")
    answer = wait_for_answer(qtbot, chat)
    assert answer.text == DEFAULT_ANSWER
    assert chat.engine.path == "elsewhere"
    assert [len(engine.requests) for engine in loader.engines] == [1, 1]


def test_a_prompt_goes_to_the_model_that_was_opened_while_another_was_loading(
    make: Make, qtbot: QtBot
) -> None:
    loader = FakeLoader(chunks=50, seconds_per_chunk=0.02)
    chat = make(loader, loaded=False)
    chat.engine.load("somewhere")
    chat.send("hello")
    loader.chunks = 1
    chat.engine.load("elsewhere")
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER


def test_journals_of_earlier_versions_join_the_list(
    make: Make, qtbot: QtBot, folders: AppFolders
) -> None:
    folders.old_conversations.mkdir(parents=True)
    record = '{"kind": "prompt", "id": "p", "text": "from before", "time": 1.0}\n'
    (folders.old_conversations / "old.jsonl").write_text(record)
    chat = make()
    chat.import_old(folders.old_conversations)
    qtbot.waitUntil(lambda: [c.title for c in chat.conversations] == ["from before"])
    chat.select("old")
    assert chat.current.messages[0].text == "from before"
    chat.retry(chat.current.messages[-1].id)
    assert wait_for_answer(qtbot, chat).text == DEFAULT_ANSWER
    assert [m.text for m in on_disk(folders)[0].messages] == ["from before", DEFAULT_ANSWER]


def test_what_could_not_be_saved_stays_in_the_list_when_journals_join_it(
    make: Make, qtbot: QtBot, folders: AppFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = make()
    chat.send("only in memory")
    wait_for_answer(qtbot, chat)
    monkeypatch.setattr(ChatStore, "entries", lambda store: [])  # as a file that cannot be read
    folders.old_conversations.mkdir(parents=True)
    (folders.old_conversations / "old.jsonl").write_text("no record\n")
    told: list[bool] = []
    chat.conversations_changed.connect(lambda: told.append(True))
    chat.import_old(folders.old_conversations)
    qtbot.waitUntil(lambda: bool(told))
    assert [c.title for c in chat.conversations] == ["only in memory"]
