"""Python replies are judged by running them, and cannot harm or cheat the judge."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.data.skills import Example, generate_examples
from trainer.verify import seccomp, verify, verify_many
from trainer.verify.code import check_python
from trainer.verify.sandbox import Limits, Sandbox, SandboxError

CHECK = {"function": "f", "cases": [[[1], 2], [[5], 6], [[-3], -2]]}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=1, limits=Limits(seconds=0.6)) as pool:
        yield pool


def judge(sandbox: Sandbox, body: str) -> tuple[bool, str]:
    """Verdict on `def f(x)` with this body (and whatever stands before it)."""
    verdict = check_python(CHECK, f"```python\n{body}\n```", sandbox)
    return verdict.ok, verdict.reason


def sample(count: int) -> list[Example]:
    return list(generate_examples(12, 0, count, "train", ["python"]))


def test_every_canonical_answer_is_right() -> None:
    examples = sample(320) + list(generate_examples(12, 0, 40, "heldout_templates", ["python"]))
    verdicts = verify_many(examples, [example.answer for example in examples])
    assert [v.reason for v in verdicts if not v.ok] == []


MUTATIONS = (
    ("return ", "return not "),
    (" > ", " < "),
    (" == ", " != "),
    ("+= ", "-= "),
    ("append(x", "append(1 + x"),
    ("def ", "def other_"),
    ("```python\n", ""),
    ("    return", "return"),
    ("```python\n", "```python\nimport nothing_of_that_name\n"),
)


@pytest.mark.parametrize(("old", "new"), MUTATIONS)
def test_changed_code_is_wrong(old: str, new: str) -> None:
    changed = [(e, e.answer.rpartition("```python")) for e in sample(40)]
    pairs = [
        (e, head + (fence + tail).replace(old, new, 1))
        for e, (head, fence, tail) in changed
        if old in fence + tail
    ][:12]
    assert pairs
    accepted = [reply for e, reply in pairs if verify(e, reply).ok]
    assert accepted == []


def test_a_right_function_passes_however_it_is_written(sandbox: Sandbox) -> None:
    assert judge(sandbox, "f = lambda x: -~x") == (True, "")
    assert judge(sandbox, "import math\ndef f(x):\n    print(x)\n    return math.floor(x + 1)")[0]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def f(x):\n    return x", "gave 1"),
        ("def f(x):\n    return float(x + 1)", "gave 2.0"),
        ("def f(x):\n    return (x + 1,)", "a result of type tuple"),
        ("def f(x):\n    return x + 1 if x > 0 else None", "gave None"),
        ("def f(x):\n    return 1 / 0", "ZeroDivisionError"),
        ("def g(x):\n    return x + 1", "KeyError"),
        ("def f(x)\n    return x + 1", "SyntaxError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("def f(x):\n    raise SystemExit", "SystemExit"),
        ("def f(x):\n    return float('nan')", "not finite"),
        ("class Odd(int):\n    pass\ndef f(x):\n    return Odd(x + 1)", "a result of type Odd"),
    ],
)
def test_wrong_results_are_told(sandbox: Sandbox, body: str, reason: str) -> None:
    ok, told = judge(sandbox, body)
    assert not ok
    assert reason in told


@pytest.mark.parametrize(
    "body",
    [
        "def f(x):\n    while True:\n        pass",
        "while True:\n    pass",
        "def f(x):\n    return 10 ** 10 ** 9",
        "import time\ndef f(x):\n    time.sleep(60)",
        "def f(x):\n    try:\n        while True: pass\n    except BaseException:\n        f(x)",
        "import signal\nsignal.signal(signal.SIGXCPU, lambda *a: None)\nwhile True:\n    pass",
    ],
)
def test_what_never_ends_is_ended(sandbox: Sandbox, body: str) -> None:
    start = time.monotonic()
    ok, reason = judge(sandbox, body)
    assert not ok
    assert "TimeLimit" in reason or "NoResult" in reason or "Error" in reason
    assert time.monotonic() - start < 5
    assert judge(sandbox, "def f(x):\n    return x + 1")[0]


@pytest.mark.parametrize(
    "body",
    [
        "def f(x):\n    return [0] * 10 ** 10",
        "def f(x):\n    s = 'a' * 1000\n    while True:\n        s += s",
        "def f(x):\n    keep = []\n    while True:\n        keep.append(bytearray(1 << 20))",
    ],
)
def test_memory_is_limited(body: str) -> None:
    # Much time, so that on a busy machine too it is memory that ends the run.
    with Sandbox(workers=1, limits=Limits(seconds=30.0)) as patient:
        ok, reason = judge(patient, body)
        assert not ok
        assert "MemoryError" in reason or "NoResult" in reason
        assert judge(patient, "def f(x):\n    return x + 1")[0]


@pytest.mark.parametrize(
    "body",
    [
        "import os\nos.fork()",
        "import os\nassert os.system('true') == 0",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(1, 0)",
        "import os\nos.listdir('/')",
        "import os\nos.stat('/')",
        "import os\nos.mkdir('made')",
        "import os\nos.setuid(0)",
        "import os\nos.dup(3)",
        "open('/etc/hostname').read()",
        "import _socket\n_socket.socket()",
        "import subprocess",
        "import ctypes\nassert ctypes.CDLL(None).getppid() > 0",
    ],
)
def test_the_machine_is_out_of_reach(sandbox: Sandbox, body: str) -> None:
    ok, reason = judge(sandbox, f"{body}\ndef f(x):\n    return x + 1")
    assert not ok
    assert "Error" in reason
    assert judge(sandbox, "def f(x):\n    return x + 1")[0]


def test_no_file_is_written(sandbox: Sandbox, tmp_path: Path) -> None:
    target = tmp_path / "written"
    body = f"open({str(target)!r}, 'w').write('x')\ndef f(x):\n    return x + 1"
    assert "PermissionError" in judge(sandbox, body)[1]
    assert not target.exists()


def test_no_connection_is_made(sandbox: Sandbox) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        body = f"import socket\nsocket.create_connection(('127.0.0.1', {port}))"
        assert not judge(sandbox, f"{body}\ndef f(x):\n    return x + 1")[0]
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_result_cannot_be_claimed_without_computing_it(sandbox: Sandbox) -> None:
    """The expected values never enter the child, so writing to the result pipe gains nothing."""
    claim = (
        'import os\nos.write(3, b\'{"results": [true, true, true], "error": null}\')\nos._exit(0)\n'
    )
    assert not judge(sandbox, claim)[0]
    flood = "import os\nwhile True:\n    os.write(3, b'x' * 65536)\n"
    assert not judge(sandbox, flood)[0]
    always = "class Any:\n    def __eq__(self, other): return True\ndef f(x):\n    return Any()"
    assert "a result of type Any" in judge(sandbox, always)[1]


def test_one_reply_cannot_change_the_next(sandbox: Sandbox) -> None:
    poison = (
        "import builtins, json\nbuiltins.len = None\njson.dumps = None\ndef f(x):\n    return x"
    )
    assert not judge(sandbox, poison)[0]
    assert judge(sandbox, "def f(x):\n    return x + len('a')")[0]


def test_a_dead_worker_is_replaced(sandbox: Sandbox) -> None:
    worker = sandbox._all[0]
    assert worker._process is not None
    os.kill(worker._process.pid, 9)
    worker._process.wait()
    assert judge(sandbox, "def f(x):\n    return x + 1")[0]


def test_workers_end_with_the_pool() -> None:
    pool = Sandbox(workers=2)
    processes = [w._process for w in pool._all if w._process is not None]
    assert processes
    pool.close()
    assert all(process.poll() is not None for process in processes)


def test_another_system_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SandboxError) as refusal:
        Sandbox(workers=1)
    assert refusal.value.code == "sandbox.unsupported"
    assert "Linux only" in refusal.value.message


def test_an_open_filter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel that lets the child open files is found out before any reply is run."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    r = [2] if '1' in str(json.loads(line)['calls']) else ['content']\n"
        "    print(json.dumps({'results': r, 'error': None}), flush=True)\n"
    )
    monkeypatch.setattr("trainer.verify.sandbox.WORKER", worker)
    with pytest.raises(SandboxError) as refusal:
        Sandbox(workers=1)
    assert refusal.value.code == "sandbox.open"


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_program_jumps_to_where_it_says(machine: str) -> None:
    """Runs the BPF program in Python: allowed calls pass, write only to its descriptor, others
    are denied, foreign architectures die."""
    column, architecture = seccomp.MACHINES[machine]
    code = seccomp.filter_program(machine, writable=3)
    steps = [code[i : i + 8] for i in range(0, len(code), 8)]

    def outcome(call: int, argument: int = 0, arch: int = architecture) -> int:
        data = {0: call, 4: arch, 16: argument}
        at, value = 0, 0
        while True:
            kind = int.from_bytes(steps[at][:2], "little")
            yes, no = steps[at][2], steps[at][3]
            k = int.from_bytes(steps[at][4:], "little")
            if kind == 0x06:
                return k
            if kind == 0x20:
                value = data[k]
            else:
                hit = value == k if kind == 0x15 else value >= k
                at += yes if hit else no
            at += 1

    allow, deny, kill = 0x7FFF0000, 0x00050001, 0x80000000
    for numbers in seccomp.ALLOWED_CALLS.values():
        assert outcome(numbers[column]) == allow
    assert outcome(seccomp.WRITE[column], 3) == allow
    assert outcome(seccomp.WRITE[column], 1) == deny
    denied = {"x86_64": (2, 41, 56, 57, 59, 62, 257, 435), "aarch64": (56, 198, 220, 221, 129)}
    for call in denied[machine]:
        assert outcome(call) == deny
    assert outcome(0, arch=1) == kill
    assert outcome(0x40000001) == kill


def test_a_packaged_app_starts_no_second_window_to_check_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.frozen", True, raising=False)
    with pytest.raises(SandboxError) as refusal:
        Sandbox(workers=1)
    assert refusal.value.code == "sandbox.unsupported"
