"""Runs foreign Python functions without letting them touch the machine.

Every run is a forked child with hard limits on time and memory and a system call filter: no files,
no network, no processes. Workers stay alive between runs, so that a run takes a few milliseconds.
Linux on x86_64 or aarch64 only; elsewhere a typed error says so instead of running unprotected.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import queue
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnblurError
from trainer.verify.seccomp import MACHINES

WORKER = Path(__file__).with_name("sandbox_worker.py")
# What code inside may import (the worker holds them ready; nothing else can be opened).
MODULES = (
    *("abc", "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math"),
    *("operator", "random", "re", "statistics", "string", "sys", "textwrap", "time", "typing"),
    "unicodedata",
)
SLACK_SECONDS = 5.0  # how much longer than the time limit a worker may stay silent


class SandboxError(UnblurError):
    """Foreign code cannot be run safely here."""


@dataclass(frozen=True)
class Limits:
    """seconds: wall and processor time of one run. memory: address space in bytes."""

    seconds: float = 1.0
    memory: int = 256 << 20


@dataclass(frozen=True)
class RunResult:
    """results: of the calls that returned, in order. error: why the next one did not, or None."""

    results: list[Any]
    error: str | None


class _Worker:
    """One worker process and its pipes; started when first used, started again when it dies."""

    def __init__(self, judge: Path | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-I", *(["-S"] if judge is None else []), str(WORKER)]
        self._command += [] if judge is None else [str(judge)]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
            )
        return self._process

    def ask(self, request: dict[str, Any]) -> RunResult:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            silent = request["seconds"] + SLACK_SECONDS
            ready = select.select([process.stdout], [], [], silent)[0]
            line = process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        if not line:
            self.close()
            return RunResult([], "WorkerLost: the sandbox worker died")
        answer = json.loads(line)
        return RunResult(answer["results"], answer["error"])

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


class Sandbox:
    """A pool of workers. `run` may be called from several threads at once. judge: path of a trusted
    module whose functions run inside, too (`run_judge`).

    Raises SandboxError (`sandbox.unsupported`, `sandbox.open`) where runs would be unprotected.
    """

    def __init__(
        self,
        workers: int | None = None,
        limits: Limits | None = None,
        judge: Path | None = None,
    ) -> None:
        if not sys.platform.startswith("linux") or platform.machine() not in MACHINES:
            raise SandboxError(
                "sandbox.unsupported",
                f"Code can be checked safely on Linux only, not on {platform.system()} "
                f"{platform.machine()}.",
                "Use another verifier on this machine.",
            )
        if getattr(sys, "frozen", False):  # its executable would open a second window
            raise SandboxError(
                "sandbox.unsupported",
                "The packaged app has no Python of its own to check code with.",
                "Use another verifier, or run Unblur from its source folder.",
            )
        self.size = workers or min(16, os.cpu_count() or 1)
        self.limits = limits or Limits()
        self._all = [_Worker(judge) for _ in range(self.size)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._all:
            self._idle.put(worker)
        self._prove_closed()

    def _prove_closed(self) -> None:
        """Opening a file must fail inside, and a harmless function must work."""
        probe = self.run("def probe():\n    return open('/').read()", "probe", [[]])
        sound = self.run("def probe(x):\n    return x + 1", "probe", [[1]])
        if not (probe.error or "").startswith("PermissionError") or sound.results != [2]:
            self.close()
            raise SandboxError(
                "sandbox.open",
                f"The system call filter does not work here ({probe.error}; {sound.error}).",
                "Run on a Linux kernel with seccomp, or use another verifier.",
            )

    def run(self, code: str, function: str, calls: list[list[Any]]) -> RunResult:
        """Calls `function` of `code` with each argument list, all in one fresh process."""
        return self._ask(code, function, calls)

    def run_judge(self, function: str, calls: list[list[Any]]) -> RunResult:
        """The same with a function of the trusted module this pool was made with."""
        return self._ask(None, function, calls)

    def _ask(self, code: str | None, function: str, calls: list[list[Any]]) -> RunResult:
        request = {
            "code": code,
            "function": function,
            "calls": calls,
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
        }
        worker = self._idle.get()
        try:
            return worker.ask(request)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._all:
            worker.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: dict[tuple[Limits, Path | None], Sandbox] = {}
_shared_lock = threading.Lock()


def shared_sandbox(limits: Limits | None = None, judge: Path | None = None) -> Sandbox:
    """The process-wide pool for these limits and this judge, made on first use; its workers end
    with this process."""
    key = (limits or Limits(), judge)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Sandbox(limits=key[0], judge=judge)
            atexit.register(_shared[key].close)
        return _shared[key]
