"""A model for the server where there is no window: one thread that loads it and makes every reply.

It knows the engine's protocol. It refuses to know HTTP.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from app.server.reply import Reply, no_model
from engine.errors import UnblurError
from engine.protocol import Engine
from engine.types import ModelInfo


class EngineThread:
    """Implements `app.server.reply.ModelSource`."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        """load: gives the engine, in the thread that will use it. Raises whatever it raises."""
        self._load = load
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._loaded = threading.Event()
        self._info: ModelInfo | None = None
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    def wait_until_loaded(self) -> ModelInfo:
        """Raises what the load raised."""
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure
        return self.info()

    def info(self) -> ModelInfo:
        info = self._info
        if info is None:
            raise no_model("No model is loaded.", "Wait until it is, or start the server again.")
        return info

    def submit(self, reply: Reply) -> None:
        with self._lock:
            if not self._closed:
                self._replies.put(reply)
                return
        reply.refuse(no_model("The model is gone: Unblur is ending.", "Start the server again."))

    def close(self) -> None:
        """Gives the model's memory back, after the reply that is being made."""
        with self._lock:
            self._closed = True
            self._replies.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            engine = self._load()
            self._info = engine.info
        except Exception as error:  # noqa: BLE001 - the thread's root: whoever waits raises it
            self._failure = error
            self._refuse_all()
            return
        finally:
            self._loaded.set()
        try:
            while (reply := self._replies.get()) is not None:
                try:
                    reply.run(engine)
                except UnblurError:
                    continue  # it was told to the client, and the engine stays usable
        except Exception:  # noqa: BLE001 - the thread's root: the reply has told it and the log has it
            self._info = None
        finally:
            self._info = None
            engine.unload()
            self._refuse_all()

    def _refuse_all(self) -> None:
        with self._lock:
            self._closed = True
            while not self._replies.empty():
                reply = self._replies.get()
                if reply is not None:
                    reply.refuse(no_model("The model failed.", "Start the server again."))
