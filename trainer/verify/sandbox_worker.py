"""The sandbox's worker process: forks a locked-down child for every request.

Runs as a script with the standard library only (`python -I -S sandbox_worker.py`), so that it is
small and starts fast. A request is one JSON line on stdin, its result one JSON line on stdout. It
knows a function's arguments but never the expected results, so that no code can claim them.

`python -I sandbox_worker.py judge.py` also loads a trusted module of ours and the libraries it
needs, before any lock; a request without code calls that module's functions.
"""

from __future__ import annotations

import abc
import bisect
import calendar
import cmath
import codecs
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import hashlib
import heapq
import importlib.util
import itertools
import json
import math
import operator
import os
import random
import re
import resource
import select
import signal
import statistics
import string
import sys
import textwrap
import time
import typing
import unicodedata
from types import ModuleType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seccomp  # pyright: ignore[reportMissingImports]  # beside this script, by path

# Imported before the lock, since nothing can be imported after it.
PRELOADED = (
    *(abc, bisect, calendar, cmath, collections, copy, dataclasses, datetime, decimal, enum),
    *(fractions, functools, hashlib, heapq, itertools, json, math, operator, random, re),
    *(statistics, string, sys, textwrap, time, typing, unicodedata),
)
# These put imports off until they are used.
datetime.datetime.strptime("2000", "%Y")
for _name in ("ascii", "latin-1", "utf-16", "utf-32"):
    codecs.lookup(_name)
LARGEST_RESULT = 1 << 20  # bytes
RESULT = 3  # the child's only descriptor
LARGEST_DESCRIPTOR = 64  # a worker holds fewer than ten
DEPTH = 20


def plain(value: Any, depth: int = 0) -> Any:
    """The value if JSON can hold it exactly. Raises TypeError for anything else."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        if value != value or value in (math.inf, -math.inf):
            raise TypeError("a float that is not finite")
        return value
    if depth < DEPTH and kind is list:
        return [plain(item, depth + 1) for item in value]
    if depth < DEPTH and kind is dict and all(type(key) is str for key in value):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"a result of type {kind.__name__}")


def run_code(
    code: str | None, function: str, calls: list[list[Any]], judge: ModuleType | None
) -> dict[str, Any]:
    """Results of the calls in order; stops at the first that fails. code: None = the judge's
    functions are called."""
    space: dict[str, Any] = {"__name__": "reply"} if code is not None else vars(judge)
    results: list[Any] = []
    try:
        if code is not None:
            exec(compile(code, "<reply>", "exec"), space)
        for arguments in calls:
            results.append(plain(space[function](*arguments)))
    except BaseException as error:  # noqa: BLE001  (foreign code may raise anything)
        return {"results": results, "error": f"{type(error).__name__}: {error}"[:200]}
    return {"results": results, "error": None}


def limit(seconds: float, memory: int) -> None:
    """Hard limits of this process: processor time, address space, no files, no core."""
    whole = max(1, math.ceil(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def child(request: dict[str, Any], pipe: int, lock: seccomp.Lock, judge: ModuleType | None) -> None:
    """Runs one request and leaves; never returns."""
    try:
        os.dup2(pipe, RESULT)
        os.closerange(0, RESULT)
        os.closerange(RESULT + 1, LARGEST_DESCRIPTOR)
        sys.stdin = sys.stdout = sys.stderr = None  # print() says nothing
        limit(request["seconds"], request["memory"])
        lock.close()
        outcome = run_code(request["code"], request["function"], request["calls"], judge)
        os.write(RESULT, json.dumps(outcome).encode())
    finally:
        os._exit(0)


def collect(pipe: int, seconds: float) -> bytes | None:
    """What the child wrote until it closed the pipe; None when it took too long or too much."""
    deadline = time.monotonic() + seconds
    received = b""
    while len(received) <= LARGEST_RESULT:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return received
        received += piece
    return None


def serve(request: dict[str, Any], lock: seccomp.Lock, judge: ModuleType | None) -> dict[str, Any]:
    """Forks, waits within the time limit, kills what is left."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        child(request, writing, lock, judge)
    os.close(writing)
    received = collect(reading, request["seconds"])
    os.close(reading)
    os.kill(process, signal.SIGKILL)  # a zombie until it is waited for: never another process
    os.waitpid(process, 0)
    if received is None:
        return {"results": [], "error": "TimeLimit: no result within the time limit"}
    try:
        outcome = json.loads(received)
        return {"results": list(outcome["results"]), "error": outcome["error"]}
    except (ValueError, KeyError, TypeError):
        return {"results": [], "error": "NoResult: the process ended without a result"}


def load(path: str) -> ModuleType:
    """A trusted module by its path."""
    spec = importlib.util.spec_from_file_location("judge", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    lock = seccomp.Lock(RESULT)
    judge = load(sys.argv[1]) if len(sys.argv) > 1 else None
    gc.freeze()  # a child then copies fewer pages
    for line in sys.stdin:
        sys.stdout.write(json.dumps(serve(json.loads(line), lock, judge)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
