"""Which part of a growing answer may be sent: stop texts cut it, and may begin in one block and
end in the next.

It knows text only. A character whose bytes are not all there yet is held back, too.
"""

from __future__ import annotations

from engine.errors import RuntimeFailure

UNFINISHED = "\ufffd"  # how a tokenizer shows the first bytes of a character


class Outlet:
    """Gives out each character of an answer once. `found`: a stop text was met; nothing comes
    after it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.found = False
        self.sent = ""
        self._stops = stops

    def more(self, whole: str, final: bool = False) -> str:
        """What can be sent now that the answer so far is `whole`. Raises RuntimeFailure when text
        that was sent has changed: a stream cannot take it back."""
        if self.found:
            return ""
        if not whole.startswith(self.sent):
            raise RuntimeFailure(
                "server.text_changed",
                "The model changed text of the answer that was already sent.",
                "Ask without a stream: the answer then comes whole.",
            )
        begins = [at for stop in self._stops if (at := whole.find(stop, len(self.sent))) >= 0]
        if begins:
            self.found = True
            end = min(begins)
        else:
            end = len(whole) if final else self._safe_end(whole)
        out = whole[len(self.sent) : end]
        self.sent += out
        return out

    def _safe_end(self, whole: str) -> int:
        end = len(whole.rstrip(UNFINISHED))
        held = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(whole)), held, -1):
                if whole.endswith(stop[:length]):
                    held = length
                    break
        return max(len(self.sent), min(end, len(whole) - held))
