"""run.py and tests/suite.py: the decisions they take, without installing anything."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import run
import suite

REPO = Path(__file__).resolve().parents[2]
RTX_5090 = run.Gpu("NVIDIA GeForce RTX 5090", (12, 0))
RTX_4090 = run.Gpu("NVIDIA GeForce RTX 4090", (8, 9))
GTX_1080 = run.Gpu("NVIDIA GeForce GTX 1080", (6, 1))
BARE_LINUX = run.Machine("Linux", None, ())
DEFAULT_INDEX = ("2.14.1", "2.13.0", "2.12.1")


# ---------------------------------------------------------------- which torch


@pytest.mark.parametrize(
    ("driver", "gpus", "tag", "reason"),
    [
        (None, (), "cpu", "no NVIDIA driver"),
        ("", (), "cpu", "reports no GPU"),
        ("580.65.06", (), "cpu", "580.65.06 reports no GPU"),
        ("580.65.06", (RTX_5090,), "cu130", "RTX 5090"),
        ("580.65.06", (GTX_1080, RTX_5090), "cu130", "RTX 5090"),
        ("560.35", (RTX_4090,), "cu126", "driver 560.35"),
        ("590.10", (GTX_1080,), "cu126", "GTX 1080"),
        ("570.10", (RTX_5090,), "cpu", "older than 580: update the driver"),
        ("470.10", (RTX_4090,), "cpu", "older than 528: update the driver"),
        ("470.10", (run.Gpu("Tesla K80", (3, 7)),), "cpu", "no build for this GPU"),
    ],
)
def test_the_build_fits_gpu_and_driver_and_says_why(
    driver: str | None, gpus: tuple[run.Gpu, ...], tag: str, reason: str
) -> None:
    chosen, why = run.choose_build(run.Machine("Linux", driver, gpus))
    assert chosen == tag
    assert reason in why


def test_without_a_gpu_linux_never_takes_the_untagged_release() -> None:
    torch = run.choose_torch("2.13.0", BARE_LINUX, DEFAULT_INDEX, None)
    assert torch.requirement == "torch==2.13.0+cpu"
    assert torch.url == run.BUILDS["cpu"].url


def test_a_cpu_build_that_pip_offers_wins_over_the_public_index() -> None:
    torch = run.choose_torch("2.13.0", BARE_LINUX, ("2.13.0+cpu", *DEFAULT_INDEX), None)
    assert torch.requirement == "torch==2.13.0+cpu"
    assert torch.url is None
    assert "pip's configuration offers" in torch.why


def test_with_no_index_in_reach_the_public_cpu_index_is_still_the_only_choice() -> None:
    assert run.choose_torch("2.13.0", BARE_LINUX, (), None).url == run.BUILDS["cpu"].url


def test_linux_with_a_gpu_takes_the_untagged_release_and_not_a_cpu_build_beside_it() -> None:
    machine = run.Machine("Linux", "580.65.06", (RTX_5090,))
    torch = run.choose_torch("2.13.0", machine, ("2.13.0+cpu", *DEFAULT_INDEX), None)
    # === compares the text: 2.13.0+cpu does not satisfy it, though it satisfies ==2.13.0.
    assert torch.requirement == "torch===2.13.0"
    assert torch.url is None


def test_windows_with_a_gpu_takes_the_cuda_index_and_without_one_the_default() -> None:
    gpu = run.choose_torch(
        "2.13.0", run.Machine("Windows", "580.88", (RTX_4090,)), DEFAULT_INDEX, None
    )
    assert (gpu.requirement, gpu.url) == ("torch==2.13.0+cu130", run.BUILDS["cu130"].url)
    bare = run.choose_torch("2.13.0", run.Machine("Windows", None, ()), DEFAULT_INDEX, None)
    assert (bare.requirement, bare.url) == ("torch===2.13.0", None)


@pytest.mark.parametrize(
    ("override", "requirement", "url"),
    [
        ("pip", "torch==2.13.0", None),
        ("cu126", "torch==2.13.0+cu126", run.BUILDS["cu126"].url),
        ("https://mirror.example/torch", "torch==2.13.0", "https://mirror.example/torch"),
    ],
)
def test_the_environment_variable_wins(override: str, requirement: str, url: str | None) -> None:
    torch = run.choose_torch("2.13.0", BARE_LINUX, ("2.13.0+cpu",), override)
    assert (torch.requirement, torch.url) == (requirement, url)
    assert "UNBLUR_TORCH_INDEX" in torch.why


def test_pip_listing_is_read_and_an_empty_one_offers_nothing() -> None:
    listing = "torch (2.14.1)\nAvailable versions: 2.14.1, 2.13.0+cpu, 2.13.0\n  INSTALLED: 2.13.0"
    assert run.offered_versions(listing) == ("2.14.1", "2.13.0+cpu", "2.13.0")
    assert run.offered_versions("") == ()


def test_constraints_pin_torch_and_every_tool_that_judges_the_code() -> None:
    text = (REPO / "constraints.txt").read_text(encoding="utf-8")
    for package in ("torch", "triton", "ruff", "basedpyright", "pytest"):
        assert run.pinned(text, package)[0].isdigit()
    with pytest.raises(ValueError, match="does not pin nonesuch"):
        run.pinned(text, "nonesuch")


# ---------------------------------------------------------------- the second start


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in a folder with a space and letters outside ASCII, as run.py sees its own."""
    folder = tmp_path / "Übung für 模型"
    folder.mkdir()
    for name in ("run.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPO / name, folder / name)
    monkeypatch.setattr(run, "HERE", folder)
    monkeypatch.setattr(run, "VENV", folder / ".venv")
    monkeypatch.setattr(run, "STATE", folder / ".venv" / "unblur-install.json")
    monkeypatch.delenv("UNBLUR_TORCH_INDEX", raising=False)
    return folder


def finish_install(extras: list[str], driver: bool = False) -> None:
    """Leaves what a finished installation leaves: an interpreter and the state file."""
    run.venv_python().parent.mkdir(parents=True, exist_ok=True)
    run.venv_python().touch()
    state = {"key": run.install_key(), "extras": extras, "driver": driver}
    run.STATE.write_text(json.dumps(state), encoding="utf-8")


def test_a_finished_installation_is_not_repeated(checkout: Path) -> None:
    assert not run.is_installed(set(), driver=False)
    finish_install(["dev"])
    assert run.is_installed(set(), driver=False)
    assert run.is_installed({"dev"}, driver=False)


def test_tests_install_their_tools_after_a_plain_start(checkout: Path) -> None:
    finish_install([])
    assert not run.is_installed({"dev"}, driver=False)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_is_installed(checkout: Path, name: str) -> None:
    finish_install([])
    with (checkout / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert not run.is_installed(set(), driver=False)


def test_a_new_gpu_or_a_new_python_or_another_index_installs_again(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_install([])
    assert not run.is_installed(set(), driver=True)
    with monkeypatch.context() as changed:
        changed.setenv("UNBLUR_TORCH_INDEX", "cpu")
        assert not run.is_installed(set(), driver=False)
    with monkeypatch.context() as changed:
        changed.setattr(run.sys, "version_info", (3, 99, 0))
        assert not run.is_installed(set(), driver=False)
    assert run.is_installed(set(), driver=False)


def test_a_damaged_state_or_a_missing_interpreter_installs_again(checkout: Path) -> None:
    finish_install([])
    run.venv_python().unlink()
    assert not run.is_installed(set(), driver=False)
    finish_install([])
    run.STATE.write_text('{"key": "', encoding="utf-8")
    assert not run.is_installed(set(), driver=False)


def test_a_package_cut_short_is_forgotten_and_a_whole_one_kept(tmp_path: Path) -> None:
    for name, files in (("whole", ("RECORD", "INSTALLER")), ("half", ("RECORD",))):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        for file in files:
            (info / file).touch()
    run.drop_half_installed(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["whole-1.0.dist-info"]


@pytest.fixture
def installs(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """run.install on this checkout, with pip's calls recorded instead of run; pip offers a CPU
    build, and the call whose number `checkout/fails` names fails."""
    calls: list[tuple[str, ...]] = []

    def fake_pip(*args: str) -> subprocess.CompletedProcess[str]:
        calls.append(args)
        failing = checkout / "fails"
        fails = failing.exists() and int(failing.read_text(encoding="utf-8")) == len(calls)
        listing = "Available versions: 2.13.0+cpu, 2.13.0\n"
        return subprocess.CompletedProcess(args, 1 if fails else 0, stdout=listing)

    def fake_venv() -> None:
        run.venv_python().parent.mkdir(parents=True, exist_ok=True)
        run.venv_python().touch()

    monkeypatch.setattr(run, "pip", fake_pip)
    monkeypatch.setattr(run, "make_venv", fake_venv)
    monkeypatch.setattr(run, "probe_machine", lambda: BARE_LINUX)
    monkeypatch.setattr(run, "nvml_library", lambda: None)
    return calls


def test_an_installation_asks_pip_for_torch_alone_and_then_for_the_rest(
    installs: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    run.ensure_installed({"dev"})
    assert installs == [
        ("index", "versions", "torch"),
        ("install", "--no-deps", "torch==2.13.0+cpu"),
        ("install", "-c", "constraints.txt", "-e", ".[dev]"),
    ]
    assert "no NVIDIA driver was found" in capsys.readouterr().out
    run.ensure_installed({"dev"})
    assert len(installs) == 3  # the second start asks pip for nothing


@pytest.mark.parametrize(("failing", "word"), [(2, "UNBLUR_TORCH_INDEX"), (3, "Start again")])
def test_a_failed_step_says_what_to_do_and_the_next_start_goes_on(
    checkout: Path, installs: list[tuple[str, ...]], failing: int, word: str
) -> None:
    (checkout / "fails").write_text(str(failing), encoding="utf-8")
    with pytest.raises(run.InstallError, match=word):
        run.ensure_installed(set())
    assert not run.STATE.exists()
    (checkout / "fails").unlink()
    run.ensure_installed(set())
    assert run.STATE.exists()


def test_windows_with_a_cuda_build_installs_triton_too(
    installs: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = run.Machine("Windows", "580.88", (RTX_4090,))
    monkeypatch.setattr(run, "probe_machine", lambda: machine)
    run.install(set())
    assert installs[1][-3:] == ("--index-url", run.BUILDS["cu130"].url, "torch==2.13.0+cu130")
    assert installs[2][-1] == "triton-windows"


# ---------------------------------------------------------------- the command line


def test_help_works_on_any_python_without_an_environment(checkout: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-I", str(checkout / "run.py"), "--help"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert answer.stdout.startswith("usage: python run.py")
    assert not (checkout / ".venv").exists()


def first_line(tree: ast.Module, *kinds: type[ast.AST]) -> int:
    return min(node.lineno for node in ast.walk(tree) if isinstance(node, kinds))  # pyright: ignore[reportAttributeAccessIssue]


def test_older_pythons_get_a_sentence_and_not_a_puzzle() -> None:
    source = (REPO / "run.py").read_text(encoding="ascii")
    tree = ast.parse(source, feature_version=(3, 6))
    check = next(n for n in tree.body if isinstance(n, ast.If))
    assert "sys.version_info < (3, 11)" in ast.unparse(check.test)
    after = [n for n in tree.body if n.lineno > check.lineno]
    assert not any(isinstance(n, ast.Import | ast.ImportFrom) for n in after)
    before = [n for n in tree.body if n.lineno < check.lineno]
    assert not any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in before)
    # Python 2 shows the first line that it cannot read: an annotation, here the sentence itself.
    modern = first_line(tree, ast.AnnAssign, ast.JoinedStr, ast.arg)
    assert "Python 3.11 or newer" in source.splitlines()[modern - 1]


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ([], {"DISPLAY": ":0"}, "xcb"),
        ([], {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "wayland"),
        ([], {}, "none"),
        ([], {"QT_QPA_PLATFORM": "offscreen"}, "offscreen"),
        (["--model", "folder"], {"DISPLAY": ":0"}, "xcb"),
        (["--screenshot", "out.png"], {}, "offscreen"),
        (["--screenshot=out.png"], {}, "offscreen"),
        (["--screenshots", "folder"], {}, "offscreen"),
        (["generate", "hello"], {}, None),
        (["inspect", "folder"], {"DISPLAY": ":0"}, None),
        (["--version"], {}, None),
    ],
)
def test_a_display_is_asked_for_only_where_a_window_opens(
    args: list[str], env: dict[str, str], expected: str | None
) -> None:
    assert run.qt_platform(args, env) == expected


def test_missing_qt_libraries_are_named_by_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"libxcb-cursor.so.0", "libEGL.so.1"}

    def load(file: str) -> None:
        if file in absent:
            raise OSError(file)

    monkeypatch.setattr(run.ctypes, "CDLL", load)
    monkeypatch.setattr(run.sys, "platform", "linux")
    monkeypatch.setattr(run.os, "environ", {"DISPLAY": ":0"})
    assert run.missing_packages(xcb=True) == ["libegl1", "libxcb-cursor0"]
    assert run.missing_packages(xcb=False) == ["libegl1"]
    assert "sudo apt install libegl1 libxcb-cursor0" in (run.check_display([]) or "")
    assert run.check_display(["generate", "hello"]) is None


def test_a_machine_without_a_display_is_told_what_works_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run.sys, "platform", "linux")
    monkeypatch.setattr(run.os, "environ", {})
    assert "run.py generate" in (run.check_display([]) or "")


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (["generate", "a b"], ["-P", "-m", "app", "generate", "a b"]),
        (["inspect", "x", "--help"], ["-P", "-m", "app", "inspect", "x", "--help"]),
        (["test", "-k", "x"], ["SUITE", "-k", "x"]),
    ],
)
def test_arguments_reach_the_program_unchanged(
    args: list[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(run, "ensure_installed", lambda extras: None)
    monkeypatch.setattr(run, "start", lambda args: started.append(args) or 0)
    assert run.main(args) == 0
    suite_file = str(REPO / "tests" / "suite.py")
    assert started == [[suite_file if a == "SUITE" else a for a in command]]


# ---------------------------------------------------------------- tests/suite.py


@pytest.mark.parametrize(
    "line",
    [
        "============ 12 passed in 3.40s ============",
        "=== 1 failed, 12 passed, 2 warnings in 3.40s ===",
        "==== 3 failed, 1 error in 75.02s (0:01:15) ====",
        "12 passed in 3.40s",
        "======== no tests ran in 0.01s ========",
        "\x1b[32m===== \x1b[32m\x1b[1m5 passed\x1b[0m\x1b[32m in 0.01s\x1b[0m\x1b[32m =====\x1b[0m",
    ],
)
def test_every_shape_of_closing_line_is_recognised(line: str) -> None:
    assert suite.closing_line(f"FAILED x - took 3 in 4s\n{line}\nlast words\n") is not None


@pytest.mark.parametrize("line", ["passed in 3s", "tests/x.py::test 12 passed", "3 in a row", ""])
def test_other_lines_are_not_taken_for_it(line: str) -> None:
    assert suite.closing_line(line) is None


CHILD = "print('F', end=''); print('\\n=== 1 failed, 2 passed in 0.10s ==='); {}raise SystemExit(1)"


@pytest.mark.parametrize("after", ["", "print('QThread: destroyed while running', flush=True); "])
def test_the_closing_line_is_the_last_one_printed(
    after: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = suite.run_and_close([sys.executable, "-c", CHILD.format(after)], {})
    last = capfdbinary.readouterr().out.decode().rstrip().splitlines()[-1]
    assert (code, last) == (1, "=== 1 failed, 2 passed in 0.10s ===")


def test_a_run_that_died_is_a_failure_and_says_so(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert suite.run_and_close([sys.executable, "-c", "print('collecting')"], {}) == 1
    assert b"without its closing line" in capfdbinary.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to die from")
def test_a_crash_after_the_last_test_is_a_failure_and_says_so(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    code = "import os; print('=== 3 passed in 0.10s ===', flush=True); os.abort()"
    assert suite.run_and_close([sys.executable, "-c", code], {}) == -6
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[-2:] == [
        "pytest was killed by signal 6 after its last test",
        "=== 3 passed in 0.10s ===",
    ]


def test_workers_are_used_for_the_whole_suite_only() -> None:
    assert suite.pytest_arguments([], 2) == ["-n", "2", "--dist", "loadfile"]
    assert suite.pytest_arguments([], 1) == []
    assert suite.pytest_arguments(["tests/house"], 8) == ["tests/house"]


def test_failing_linters_fail_the_run_though_the_tests_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = {"clean": True, "code": 0}
    monkeypatch.setattr(suite, "run_linters", lambda: outcome["clean"])
    monkeypatch.setattr(suite, "run_and_close", lambda command, env: outcome["code"])
    assert suite.main([]) == 0
    outcome["clean"] = False
    assert suite.main([]) == 1
    outcome.update(clean=True, code=5)
    assert suite.main([]) == 5


def modules() -> list[ModuleType]:
    return [run, suite]


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.__name__)
def test_the_launchers_need_the_standard_library_only(module: ModuleType) -> None:
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
