"""A real headless Chromium for tests of pages, spoken to over a pipe: no port, no network.

It knows the DevTools messages that the tests need. It refuses to know what is on a page.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30.0  # seconds for one answer: a loaded machine is slow, not broken
KEYS = {
    " ": ("Space", 32), "ArrowRight": ("ArrowRight", 39), "ArrowLeft": ("ArrowLeft", 37),
    "ArrowUp": ("ArrowUp", 38), "ArrowDown": ("ArrowDown", 40), "Home": ("Home", 36),
    "End": ("End", 35), "Tab": ("Tab", 9),
}  # fmt: skip
SHIFT = 8


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. `complaints`: errors and refusals that the page met. `requests`:
    addresses that it asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # out of the way of 3 and 4, where the browser looks for its pipes
        ours = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser, from_browser)]

        def place() -> None:
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        self._process = subprocess.Popen(
            [
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-quic", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                f"--user-data-dir={profile}", "--window-size=1280,900", "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,
            pass_fds=(3, 4),
            start_new_session=True,
        )  # fmt: skip
        for fd in (to_browser, from_browser, *ours):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Opens a file and waits until its script says that it is ready."""
        self._ask("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.ready")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The first true value of an expression."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = self.run(expression)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}")

    def press(self, key: str, *, shift: bool = False) -> None:
        code, number = KEYS[key]
        held = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        held |= {"modifiers": SHIFT if shift else 0}
        text = {"text": " "} if key == " " else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **held, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **held)

    def click(self, x: float, y: float) -> None:
        spot = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self._ask("Input.dispatchMouseEvent", type="mousePressed", buttons=1, **spot)
        self._ask("Input.dispatchMouseEvent", type="mouseReleased", buttons=0, **spot)

    def prefer(self, **features: str) -> None:
        """Media features, e.g. prefers_color_scheme="dark"."""
        named = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self._ask("Emulation.setEmulatedMedia", features=named)

    def picture(self, path: Path) -> None:
        data = self._ask("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Ends the browser and all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["args"])[:2000])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 2**20) if ready else b""
            if not data:
                raise AssertionError("the browser does not answer")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
