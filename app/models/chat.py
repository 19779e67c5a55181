"""Conversations as the window sees them: what is sent, what answers it, and that none of it is
lost.

It knows messages, their store and the engine model's lifecycle. It refuses to know widgets. A
prompt is on disk before its answer starts; an answer's finished blocks are written by the worker
thread as they come.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.backend.chat_store.old_journals import import_journals
from app.backend.chat_store.store import ChatStore
from app.backend.conversations import (
    ChatMessage,
    Conversation,
    Failure,
    MessageStatus,
    new_id,
)
from app.backend.settings import SettingsStore
from app.models.background import Background
from app.models.engine_model import EngineModel
from app.models.lifecycle import Lifecycle
from app.models.worker import GenerationJob, ReplyOutcome
from engine.types import Capture, GenerateRequest, Message

log = logging.getLogger("unblur.conversations")
CLOSE_SECONDS = 5.0
_NOT_ANSWERED = Failure(
    "load.no_model",
    "This prompt was not answered, because no model is loaded.",
    "Load a model, then try again.",
    "generate",
)


class StoreSink:
    """Writes one reply to the store from the worker thread (`app.models.worker.ReplySink`)."""

    def __init__(
        self, store: ChatStore, conversation: str, message: ChatMessage, parent: str | None
    ) -> None:
        self._store = store
        self._conversation = conversation
        self._message = message
        self._parent = parent

    def begun(self) -> None:
        self._store.reply(self._conversation, self._message, self._parent)
        self._store.sync()

    def block(self, text: str) -> None:
        self._store.partial(self._conversation, self._message.id, text)

    def ended(self, outcome: ReplyOutcome) -> None:
        ended = ended_message(self._message, outcome)
        self._store.answer(self._conversation, ended, self._parent)
        self._store.sync()


def ended_message(message: ChatMessage, outcome: ReplyOutcome) -> ChatMessage:
    """The answer as it stays. A failure without a finished block leaves what a former try wrote."""
    return replace(
        message,
        text=outcome.text or (message.text if outcome.failure else ""),
        status=MessageStatus.FAILED if outcome.failure else MessageStatus.DONE,
        reason=outcome.reason,
        figures=outcome.figures,
        failure=outcome.failure,
    )


class ChatModel(QObject):
    current_changed = Signal()  # another conversation is shown
    message_added = Signal(str)  # message id, in the current conversation
    message_changed = Signal(str)  # message id, in the current conversation
    conversations_changed = Signal()
    problem_changed = Signal()
    can_send_changed = Signal()

    def __init__(
        self,
        engine: EngineModel,
        store: ChatStore,
        settings: SettingsStore,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.engine = engine
        self._store = store
        self._settings = settings
        self.conversations: list[Conversation] = self._listed()
        self._background = Background("conversations", 1, self)
        self.current = _empty_conversation()
        self._asked: tuple[str, str] | None = (
            None  # (conversation, message) waiting or being answered
        )
        self._problem: str | None = None
        engine.state_changed.connect(self._on_state)
        engine.reply_ended.connect(self._on_reply_ended)

    @property
    def problem(self) -> str | None:
        """Why conversations cannot be saved, as a sentence, or None."""
        return self._store.problem

    @property
    def notice(self) -> str | None:
        """What happened to the conversations' file when it was opened, as a sentence, or None."""
        return self._store.notice

    def import_old(self, folder: Path) -> None:
        """Takes the journals of earlier versions in, off the GUI's thread."""
        if any(folder.glob("*.jsonl")):
            self._background.run(
                lambda stop: import_journals(self._store, folder, stop.check),
                lambda _: self._relist(),
                lambda problem: log.error("journals were not imported: %s", problem.message),
            )

    def close(self) -> None:
        """To be called once the engine's thread has ended: it writes answers."""
        self._background.close(time.monotonic() + CLOSE_SECONDS)
        self._store.close()

    def _listed(self) -> list[Conversation]:
        """What the list shows; messages are read when one is opened."""
        return [
            Conversation(e.id, e.created, name=e.name, pinned=e.pinned, begins=e.title)
            for e in self._store.entries()
        ]

    def _relist(self) -> None:
        held = {c.id: c for c in self.conversations if c.messages}
        listed = [held.pop(c.id, c) for c in self._listed()]
        self.conversations = [*held.values(), *listed]  # what could not be saved stays in sight
        self.conversations_changed.emit()
        self._tell_problem()

    @property
    def answering_here(self) -> bool:
        """True while the current conversation's last message waits for or receives its answer."""
        return self._asked is not None and self._asked[0] == self.current.id

    def blocked_reason(self, text: str) -> str | None:
        """Why `text` cannot be sent now, as a sentence; None when it can."""
        hindrance = self._hindrance()
        if hindrance is None and not text.strip():
            return self.tr("Type something to send.")
        return hindrance

    def _hindrance(self) -> str | None:
        """What holds any text back now."""
        state = self.engine.state
        if state in (Lifecycle.NO_MODEL, Lifecycle.UNLOADING):
            return self.tr("No model is loaded. Load one from the menu at the bottom left.")
        if state is Lifecycle.FAILED:
            return self.tr("The model is not usable. Load one first.")
        if self._asked is not None and not self._ending_elsewhere():
            return self.tr("The last answer is not finished. Press Esc to stop it.")
        return None

    def _ending_elsewhere(self) -> bool:
        """Whether what is asked is an answer of another conversation that is being stopped: its end
        is certain to come. A prompt that waits for a load has no such end yet.
        """
        if self._asked is None or self.engine.state is not Lifecycle.STOPPING:
            return False
        conversation_id, message_id = self._asked
        conversation = self._conversation(conversation_id)
        message = _find(conversation, message_id) if conversation else None
        answering = message is not None and message.status is MessageStatus.ANSWERING
        return answering and conversation_id != self.current.id

    def send(self, text: str) -> bool:
        """Saves the prompt, then asks for its answer (as soon as the model is ready). False when
        blocked.
        """
        if self.blocked_reason(text) is not None:
            return False
        prompt = ChatMessage(new_id(), "user", text)
        if not self.current.messages:
            self._store.begin(self.current)
        before = self.current.messages[-1].id if self.current.messages else None
        self._store.prompt(self.current.id, prompt, before)
        self._put(self.current.id, prompt)
        self.message_added.emit(prompt.id)
        answer = ChatMessage(new_id(), "assistant", "", status=MessageStatus.WAITING)
        self._put(self.current.id, answer)
        self.message_added.emit(answer.id)
        self._ask(answer.id)
        return True

    @property
    def can_retry(self) -> bool:
        """Whether an answer can be asked for again now: a model is there or coming, and free."""
        return self._hindrance() is None

    def retry(self, message_id: str) -> None:
        """Asks again for an answer that failed or was interrupted; its text stays until there is a
        better one. Does nothing unless `can_retry`.
        """
        message = _find(self.current, message_id)
        if message is None or not self.can_retry:
            return
        waiting = ChatMessage(message.id, "assistant", message.text, status=MessageStatus.WAITING)
        self._put(self.current.id, waiting)
        self.message_changed.emit(message_id)
        self._ask(message_id)

    @Slot()
    def stop(self) -> None:
        """Ends the answer being written, or the load that a prompt waits for. A load nobody waits
        for goes on: a stray Esc at the start must not leave the window without its model.
        """
        if self.engine.state is not Lifecycle.LOADING or self._asked is not None:
            self.engine.stop()

    @Slot()
    def new_chat(self) -> None:
        """Shows an empty conversation. An answer being written is stopped, and kept as far as it
        came.
        """
        if self.engine.state is Lifecycle.GENERATING:
            self.engine.stop()
        if self.current.messages:
            self.current = _empty_conversation()
        self.current_changed.emit()
        self.can_send_changed.emit()

    def select(self, conversation_id: str) -> None:
        """Shows another conversation; an answer being written elsewhere goes on."""
        for conversation in self.conversations:
            if conversation.id == conversation_id and conversation.id != self.current.id:
                self.current = self._with_messages(conversation)
                self.current_changed.emit()
                self.can_send_changed.emit()

    def _with_messages(self, conversation: Conversation) -> Conversation:
        """The conversation, read when it is first opened."""
        if conversation.messages:
            return conversation
        opened = self._store.open(conversation.id) or conversation
        self.conversations[self.conversations.index(conversation)] = opened
        return opened

    def prompt_of(self, answer_id: str) -> str:
        """The exact prompt an answer belongs to, "" when there is none."""
        text = ""
        for message in self.current.messages:
            if message.id == answer_id:
                return text
            if message.role == "user":
                text = message.text
        return ""

    def _ask(self, message_id: str) -> None:
        self._asked = (self.current.id, message_id)
        self._start_if_ready()
        self._fail_if_no_model()
        self._tell_problem()
        self.can_send_changed.emit()

    def _start_if_ready(self) -> None:
        if self._asked is None or self.engine.state is not Lifecycle.READY:
            return
        conversation_id, message_id = self._asked
        conversation = self._conversation(conversation_id)
        message = _find(conversation, message_id) if conversation else None
        if conversation is None or message is None:
            return
        model = self.engine.info.name if self.engine.info else ""
        message = replace(message, status=MessageStatus.ANSWERING, model=model)
        self._put(conversation_id, message)
        self._tell(conversation_id, message_id)
        request = GenerateRequest(
            messages=history(conversation, message_id),
            max_new_tokens=self._settings.current.answer_tokens,
            capture=self._capture(),
        )
        sink = StoreSink(self._store, conversation_id, message, _before(conversation, message_id))
        self.engine.generate(GenerationJob(message_id, request, sink))

    def _capture(self) -> Capture:
        return Capture("top-k" if self._settings.current.capture == "top-k" else "light")

    def _fail_if_no_model(self) -> None:
        if self._asked is None or self.engine.state not in (Lifecycle.NO_MODEL, Lifecycle.FAILED):
            return
        conversation_id, message_id = self._asked
        self._asked = None
        conversation = self._conversation(conversation_id)
        message = _find(conversation, message_id) if conversation else None
        if message is not None:
            failed = replace(message, status=MessageStatus.FAILED, failure=_NOT_ANSWERED)
            self._put(conversation_id, failed)
            before = _before(conversation, message_id) if conversation else None
            self._store.answer(conversation_id, failed, before)
            self._tell(conversation_id, message_id)

    @Slot(object)
    def _on_state(self, state: Lifecycle) -> None:
        self._start_if_ready()
        self._fail_if_no_model()
        self.can_send_changed.emit()

    @Slot(object)
    def _on_reply_ended(self, outcome: ReplyOutcome) -> None:
        for conversation in (self.current, *self.conversations):
            message = _find(conversation, outcome.reply_id)
            if message is not None:
                if self._asked == (conversation.id, message.id):
                    self._asked = None
                self._put(conversation.id, ended_message(message, outcome))
                self._tell(conversation.id, message.id)
                break
        self._tell_problem()
        self.can_send_changed.emit()

    def _conversation(self, conversation_id: str) -> Conversation | None:
        if self.current.id == conversation_id:
            return self.current
        return next((c for c in self.conversations if c.id == conversation_id), None)

    def _put(self, conversation_id: str, message: ChatMessage) -> None:
        conversation = self._conversation(conversation_id)
        if conversation is None:
            return
        changed = conversation.with_message(message)
        if self.current.id == conversation_id:
            self.current = changed
        known = [c.id for c in self.conversations]
        if conversation_id in known:
            self.conversations[known.index(conversation_id)] = changed
        else:
            self.conversations.insert(0, changed)
            self.conversations_changed.emit()

    def _tell(self, conversation_id: str, message_id: str) -> None:
        if conversation_id == self.current.id:
            self.message_changed.emit(message_id)

    def _tell_problem(self) -> None:
        if self._store.problem != self._problem:
            self._problem = self._store.problem
            self.problem_changed.emit()


def history(conversation: Conversation, answer_id: str) -> tuple[Message, ...]:
    """What the model reads for `answer_id`: the exchanges before it that worked, then its prompt.

    A failed exchange is left out: a prompt that was too long must not make the next one too long.
    """
    messages: list[Message] = []
    prompt: ChatMessage | None = None
    for message in conversation.messages:
        if message.role == "user":
            prompt = message
        elif message.id == answer_id:
            break
        elif prompt is not None and message.text and message.status is not MessageStatus.FAILED:
            messages += [Message("user", prompt.text), Message("assistant", message.text)]
    if prompt is not None:
        messages.append(Message("user", prompt.text))
    return tuple(messages)


def _empty_conversation() -> Conversation:
    return Conversation(id=new_id(), created=time.time())


def _before(conversation: Conversation, message_id: str) -> str | None:
    """The message that `message_id` follows on the shown branch."""
    before = None
    for message in conversation.messages:
        if message.id == message_id:
            return before
        before = message.id
    return before


def _find(conversation: Conversation, message_id: str) -> ChatMessage | None:
    return next((m for m in conversation.messages if m.id == message_id), None)
