"""Makes Unblur's private environment, once, then starts Unblur in it. Standard library only.

Knows: Python's version, `.venv`, pip, which torch build fits this machine, Qt's system libraries.
Refuses to know what Unblur does (`run.py ARGS` is `unblur ARGS`) and what its tests are
(`run.py test` is tests/suite.py).

Everything after the version check may use Python 3.11; all of it must parse on Python 3.6, so that
an older interpreter gets the sentence. Python 2 stops at the next statement and shows its line.
"""

NEEDS: str = "Unblur needs Python 3.11 or newer, 64-bit: see python.org, or your system's packages."

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info < (3, 11) or sys.maxsize < 2**32:
    sys.exit(NEEDS + " This is Python " + sys.version.split()[0] + ".")

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
STATE = VENV / "unblur-install.json"

HELP = """\
usage: python run.py [ARGS]              open Unblur's window; in general, unblur ARGS
       python run.py generate "PROMPT"   answer in the terminal
       python run.py inspect FOLDER      say what a model folder is, and whether it can be used
       python run.py test [PYTEST ARGS]  linters, type checker and every test
       python run.py --install-only      make the environment and stop
       python run.py --help              this text; `python run.py generate --help` for a command's

The first start makes .venv beside this file and installs into it; later starts go straight on.
pip's own configuration is respected. UNBLUR_TORCH_INDEX chooses where torch comes from:
cpu, cu126 or cu130 (PyTorch's public indexes), the address of another index, or pip (whatever
pip's configuration gives).
"""


# ---------------------------------------------------------------- which torch, and why


class Build(NamedTuple):
    """One of torch's builds for the pinned release, and what it asks of the machine."""

    tag: str  # the local version: torch 2.13.0+cu130
    url: str  # PyTorch's public index of this build
    driver: int  # oldest major version of NVIDIA's driver
    capability: tuple[tuple[int, int], tuple[int, int]]  # compute capabilities, first and last


INDEX = "https://download.pytorch.org/whl/"
BUILDS = {
    "cu130": Build("cu130", INDEX + "cu130", 580, ((7, 5), (99, 0))),
    "cu126": Build("cu126", INDEX + "cu126", 528, ((5, 0), (9, 0))),
    "cpu": Build("cpu", INDEX + "cpu", 0, ((0, 0), (0, 0))),
}
UNTAGGED = {"Linux": "cu130", "Windows": "cpu", "Darwin": "cpu"}  # what "2.13.0" alone is


class Gpu(NamedTuple):
    name: str
    capability: tuple[int, int]


class Machine(NamedTuple):
    """What decides the build. driver: NVIDIA's, as "580.65.06"; None without one, "" if silent."""

    system: str
    driver: str | None
    gpus: tuple[Gpu, ...]


class Torch(NamedTuple):
    """A decision: what pip is asked for, from which index (None: pip's own), and the reason."""

    requirement: str
    url: str | None
    why: str


def choose_build(machine: Machine) -> tuple[str, str]:
    """The tag of the build that fits the machine, and the reason in words."""
    if machine.driver is None:
        return "cpu", "no NVIDIA driver was found"
    if not machine.gpus:
        return "cpu", f"NVIDIA's driver {machine.driver or 'is installed, but'} reports no GPU"
    gpu = max(machine.gpus, key=lambda g: g.capability)
    have = f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    major = int(machine.driver.split(".")[0])
    fitting = [
        b
        for b in BUILDS.values()
        if b.driver and b.capability[0] <= gpu.capability <= b.capability[1]
    ]
    for build in fitting:
        if major >= build.driver:
            return build.tag, f"{have}, driver {machine.driver}"
    if not fitting:
        return "cpu", f"{have}: torch has no build for this GPU any more"
    need = min(b.driver for b in fitting)
    return "cpu", f"{have}, but driver {machine.driver} is older than {need}: update the driver"


def choose_torch(
    pin: str, machine: Machine, offered: tuple[str, ...], override: str | None
) -> Torch:
    """Where torch `pin` comes from. `offered`: the versions that pip finds as it is configured.

    In this order: the override; a build that pip's configuration offers by its tag (a local file,
    a mirror); the untagged release where that is the build wanted; PyTorch's own index. So a
    machine without a GPU never takes Linux's untagged release, which is gigabytes of CUDA.
    """
    if override == "pip":
        return Torch(f"torch=={pin}", None, "UNBLUR_TORCH_INDEX=pip leaves the choice to pip")
    if override in BUILDS:
        build = BUILDS[override]
        return Torch(f"torch=={pin}+{build.tag}", build.url, f"UNBLUR_TORCH_INDEX={override}")
    if override:
        return Torch(f"torch=={pin}", override, "UNBLUR_TORCH_INDEX names this index")
    tag, why = choose_build(machine)
    if f"{pin}+{tag}" in offered:
        return Torch(f"torch=={pin}+{tag}", None, f"{why}; pip's configuration offers this build")
    if UNTAGGED.get(machine.system) == tag:
        return Torch(f"torch==={pin}", None, f"{why}; the default index has this build")
    return Torch(f"torch=={pin}+{tag}", BUILDS[tag].url, why)


def pinned(constraints: str, package: str) -> str:
    """The version that the text of constraints.txt pins `package` to."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", constraints, re.MULTILINE)
    if found is None:
        raise ValueError(f"constraints.txt does not pin {package}")
    return found.group(1)


def offered_versions(listing: str) -> tuple[str, ...]:
    """The versions in the output of `pip index versions`; none when pip found none."""
    found = re.search(r"^Available versions: (.*)$", listing, re.MULTILINE)
    return tuple(v.strip() for v in found.group(1).split(",")) if found else ()


def nvml_library() -> ctypes.CDLL | None:
    """NVIDIA's management library, which its driver brings; None means no driver."""
    linux = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
    for name in ("nvml.dll",) if os.name == "nt" else linux:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def probe_machine() -> Machine:
    """Asks NVIDIA's driver; nothing needs to be installed for that."""
    nvml = nvml_library()
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return Machine(platform.system(), None if nvml is None else "", ())
    text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    nvml.nvmlSystemGetDriverVersion(text, 96)
    driver = text.value.decode()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    gpus = []
    for i in range(count.value):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)) == 0:
            nvml.nvmlDeviceGetName(device, text, 96)
            nvml.nvmlDeviceGetCudaComputeCapability(
                device, ctypes.byref(major), ctypes.byref(minor)
            )
            gpus.append(Gpu(text.value.decode(), (major.value, minor.value)))
    nvml.nvmlShutdown()
    return Machine(platform.system(), driver, tuple(gpus))


# ---------------------------------------------------------------- the environment


class InstallError(Exception):
    """The environment could not be made; the text says what to do about it."""


def say(text: str) -> None:
    print(text, flush=True)


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install_key() -> str:
    """A hash of all that decides what is installed, and where: files, tables, Python, folder."""
    parts = [(HERE / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    facts = (
        BUILDS,
        UNTAGGED,
        sys.version_info[:3],
        str(HERE),
        os.environ.get("UNBLUR_TORCH_INDEX"),
    )
    return hashlib.sha256(b"\0".join([*parts, repr(facts).encode()])).hexdigest()


def read_state() -> dict[str, Any]:
    """What the last finished installation wrote; empty when none has finished."""
    try:
        return json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_installed(extras: set[str], driver: bool) -> bool:
    """Whether the last finished installation still holds. `driver`: is NVIDIA's driver here now."""
    state = read_state()
    same = state.get("key") == install_key() and state.get("driver") == driver
    return same and extras <= set(state.get("extras", ())) and venv_python().exists()


def pip(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs the environment's pip in the project's folder, its output shown unless captured."""
    command = [str(venv_python()), "-m", "pip", "--disable-pip-version-check", *args]
    quiet = args[0] == "index"
    return subprocess.run(
        command,
        cwd=HERE,
        env={**os.environ, "PIP_USER": "0", "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
        encoding="utf-8",
        check=False,
    )


def make_venv() -> None:
    """A new `.venv`, unless the one here answers with this Python and has pip."""
    probe = "import sys, pip; print(sys.version_info[:3])"
    if venv_python().exists():
        answer = subprocess.run(
            [str(venv_python()), "-c", probe], capture_output=True, text=True, check=False
        )
        if answer.stdout.strip() == str(sys.version_info[:3]):
            return
    try:
        import ensurepip  # noqa: F401 - Debian leaves it out of python3
        import venv
    except ImportError as error:
        package = f"python3.{sys.version_info[1]}-venv"
        raise InstallError(
            f"This Python has no {error.name}. On Debian or Ubuntu: sudo apt install {package}"
        ) from error
    say(f"Making a private environment in {VENV}")
    venv.create(VENV, with_pip=True, clear=VENV.exists())


def drop_half_installed(site: Path) -> None:
    """Forgets packages whose installation was cut short: pip would take them for whole, though it
    writes INSTALLER only after a package's files."""
    for info in site.glob("*.dist-info"):
        if not (info / "INSTALLER").exists():
            shutil.rmtree(info)


def install(extras: set[str]) -> None:
    """Brings `.venv` up to date. Each step may be cut short and run again; STATE is written last.

    Raises InstallError with the step that failed and what to do.
    """
    STATE.unlink(missing_ok=True)
    make_venv()
    for site in VENV.glob("Lib/site-packages" if os.name == "nt" else "lib/*/site-packages"):
        drop_half_installed(site)
    pin = pinned((HERE / "constraints.txt").read_text(encoding="utf-8"), "torch")
    machine = probe_machine()
    offered = offered_versions(pip("index", "versions", "torch").stdout)
    torch = choose_torch(pin, machine, offered, os.environ.get("UNBLUR_TORCH_INDEX"))
    say(f"Installing {torch.requirement} from {torch.url or 'pip'}: {torch.why}")
    source = ["--index-url", torch.url] if torch.url else []
    # Only the file itself: what torch needs comes with the rest, from pip's own indexes.
    if pip("install", "--no-deps", *source, torch.requirement).returncode != 0:
        raise InstallError(
            f"{torch.requirement} could not be installed; pip's own words are above. Where this "
            "index cannot be reached, set UNBLUR_TORCH_INDEX to a mirror of it, or to pip for what "
            "pip's configuration gives (on Linux gigabytes of CUDA), and start again."
        )
    windows_gpu = machine.system == "Windows" and "+cu" in torch.requirement
    project = f".[{','.join(sorted(extras))}]" if extras else "."
    say("Installing Unblur and what it needs")
    wanted = ["-e", project, *(["triton-windows"] if windows_gpu else [])]
    if pip("install", "-c", "constraints.txt", *wanted).returncode != 0:
        raise InstallError(
            "pip could not install what Unblur needs; its own words are above. "
            "Start again to go on from here."
        )
    state = {
        "key": install_key(),
        "extras": sorted(extras),
        "driver": nvml_library() is not None,
        "torch": torch._asdict(),
    }
    part = STATE.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1), encoding="utf-8")
    os.replace(part, STATE)


def ensure_installed(extras: set[str]) -> None:
    """Installs what is missing. Two starts at once wait for each other."""
    if is_installed(extras, nvml_library() is not None):
        return
    with open(HERE / ".venv.lock", "w", encoding="utf-8") as handle:  # freed when the process ends
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        if not is_installed(extras, nvml_library() is not None):
            install(extras | set(read_state().get("extras", ())))


# ---------------------------------------------------------------- Qt's system libraries (Linux)

QT_LIBRARIES = {  # file: Debian's and Ubuntu's package
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libX11.so.6": "libx11-6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libxkbcommon.so.0": "libxkbcommon0",
}
QT_XCB_LIBRARIES = {  # a window on X11 needs these too
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}


def qt_platform(args: list[str], env: dict[str, str]) -> str | None:
    """Which Qt platform `unblur args` will use on Linux: xcb, wayland, offscreen, none (a window is
    wanted, but there is no display), or None when no window is wanted."""
    if any(a.split("=")[0] in ("--screenshot", "--screenshots") for a in args):
        return "offscreen"
    if args and (not args[0].startswith("-") or args[0] in ("-h", "--help", "--version")):
        return None
    if env.get("QT_QPA_PLATFORM"):
        return env["QT_QPA_PLATFORM"].split(":")[0]
    if env.get("WAYLAND_DISPLAY"):
        return "wayland"
    return "xcb" if env.get("DISPLAY") else "none"


def missing_packages(xcb: bool) -> list[str]:
    """Packages whose library the loader does not find."""
    missing = []
    for file, package in (QT_LIBRARIES | (QT_XCB_LIBRARIES if xcb else {})).items():
        try:
            ctypes.CDLL(file)
        except OSError:
            missing.append(package)
    return missing


def check_display(args: list[str]) -> str | None:
    """A sentence where the window could not open on this Linux machine, else None."""
    kind = qt_platform(args, dict(os.environ)) if sys.platform == "linux" else None
    if kind is None:
        return None
    if kind == "none":
        return (
            "There is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set), so no window "
            'can open. In a terminal: python run.py generate "your prompt"'
        )
    missing = missing_packages(xcb=kind == "xcb")
    if not missing:
        return None
    return (
        "The window needs system libraries that are not installed. On Debian or Ubuntu:\n"
        f"    sudo apt install {' '.join(missing)}\n"
        "On another Linux, install the packages that hold the same libraries."
    )


# ---------------------------------------------------------------- start


def start(args: list[str]) -> int:
    """Becomes the environment's Python with `args`."""
    command = [str(venv_python()), *args]
    if os.name != "nt":
        os.execv(command[0], command)
    return subprocess.call(command)


def main(args: list[str]) -> int:
    if args and args[0] in ("-h", "--help"):
        say(HELP)
        return 0
    testing = args[:1] == ["test"]
    if testing and sys.platform == "linux" and missing_packages(xcb=False):
        say(f"Qt's tests will fail without {' '.join(missing_packages(xcb=False))}")
    problem = None if testing or args == ["--install-only"] else check_display(args)
    if problem:
        sys.exit(problem)
    try:
        ensure_installed({"dev"} if testing else set())
    except InstallError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped. Start again to go on from here.")
    if args == ["--install-only"]:
        torch = read_state()["torch"]
        say(f"Unblur is installed with {torch['requirement']}: {torch['why']}")
        return 0
    if testing:
        return start([str(HERE / "tests" / "suite.py"), *args[1:]])
    # -P: a folder named `app` in the current directory is not ours.
    return start(["-P", "-m", "app", *args])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
