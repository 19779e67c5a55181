"""Every check of the project, in the order a person wants them: linters, type checker, tests.

Knows which tools run, and that pytest's closing line is the last line printed, whatever a process
says while it ends. Refuses to know what is tested, and how anything is installed (run.py does).

Usage: `python run.py test [PYTEST ARGS]`. The exit code is pytest's, or 1 when only a linter
failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINTERS = (
    ("ruff format", ("ruff", "format", "--check", ".")),
    ("ruff check", ("ruff", "check", ".")),
    ("basedpyright", ("basedpyright",)),
)
CLOSING = re.compile(r"^=*\s*(?:\d+ \w+|no tests (?:ran|collected))\b.* in [\d.]+s\b.*$")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def say(text: str) -> None:
    print(text, flush=True)


def run_linters() -> bool:
    """Runs the linters, shows what they object to, and says whether all were clean."""
    clean = True
    for name, args in LINTERS:
        answer = subprocess.run(
            [sys.executable, "-m", *args],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        say(f"{name}: {'clean' if answer.returncode == 0 else 'FAILED'}")
        if answer.returncode != 0:
            say(answer.stdout + answer.stderr)
            clean = False
    return clean


def pytest_arguments(args: list[str], cores: int) -> list[str]:
    """Two workers for the whole suite where there are two cores; else just what was asked for."""
    return args or (["-n", "2", "--dist", "loadfile"] if cores >= 2 else [])


def closing_line(output: str) -> str | None:
    """pytest's summary line in its output, colours removed; None where there is none."""
    lines = [line.rstrip() for line in COLOURS.sub("", output).splitlines()]
    return next((line for line in reversed(lines) if CLOSING.match(line)), None)


def run_and_close(command: list[str], env: dict[str, str]) -> int:
    """Runs pytest and passes its output on as it comes.

    Its closing line is printed again when something came after it (a library's last words), and
    a run that died without one says so.
    """
    child = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = child.stdout
    assert output is not None
    tail = b""
    while chunk := os.read(output.fileno(), 65536):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        tail = (tail + chunk)[-65536:]
    code = child.wait()
    text = tail.decode("utf-8", "replace").rstrip()
    closing = closing_line(text)
    if closing is None:
        say(f"\npytest ended with exit code {code} and without its closing line")
        return code or 1
    if code < 0:  # a crash while Python ends is a failure, though every test has passed
        say(f"\npytest was killed by signal {-code} after its last test\n{closing}")
    elif closing_line(text.rpartition("\n")[2]) is None:
        say("\n" + closing)
    return code


def main(args: list[str]) -> int:
    clean = run_linters()
    env = {"QT_QPA_PLATFORM": "offscreen", "OMP_NUM_THREADS": "1", **os.environ}
    env["COLUMNS"] = str(shutil.get_terminal_size().columns)
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    pytest = [*colour, *pytest_arguments(args, os.cpu_count() or 1)]
    code = run_and_close([sys.executable, "-m", "pytest", *pytest], env)
    return code if code != 0 or clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
