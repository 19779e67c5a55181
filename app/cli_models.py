"""`unblur models`: the Models page from the terminal. No Qt.

It knows arguments, what is printed, and exit statuses: 0 done, 1 a failure (told on stderr), 2
wrong usage, 130 stopped by Ctrl+C. Everything else is the backend's.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from app.backend.hub.catalog import CatalogEntry, load_catalog
from app.backend.hub.client import HubModel
from app.backend.hub.examine import Examined, examine
from app.backend.hub.fit import Fit, Verdict, fit
from app.backend.hub.ref import parse_ref
from app.backend.hub.support import Supported
from app.backend.judge import look_at_machine, plan_of
from app.backend.library.scan import FolderView, LocalModel, Presence
from app.backend.library.verify import Report, verify
from app.backend.model_services import ModelServices, open_services
from app.backend.repair import plan_repair
from app.backend.transfer.download import Download, kept_bytes
from app.backend.transfer.faults import Interrupted, gigabytes
from app.backend.transfer.fetch import Policy
from app.backend.transfer.plan import refuse_if_here
from app.backend.transfer.stop import Stop
from engine.errors import UnblurError

INTERRUPTED = 130
CONTEXT = 4096
MOST = 10_000_000  # tokens of a context, models of a search
_DRIVING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unblur models",
        description="Find, get, verify and remove models.",
        epilog="Every command takes --json and --help. Others: list --catalog; search --limit N;"
        " get --context N, --dry-run, --anyway; verify --repair; remove --yes; token --forget.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", help="print one JSON object")
        return made

    listed = command("list", "List the models on this computer.")
    listed.add_argument("--catalog", action="store_true", help="the curated list instead")
    search = command("search", "Search the hub by name.")
    search.add_argument("words", nargs="+")
    search.add_argument("--limit", type=_count, default=20)
    get = command("get", "Download a model; a download that was cut goes on where it was.")
    get.add_argument("model", help="owner/name, owner/name@version, or a link to its page")
    get.add_argument("--context", type=_count, default=CONTEXT, help="tokens to reckon with")
    get.add_argument(
        "--dry-run", action="store_true", help="only say what it is and whether it fits"
    )
    get.add_argument(
        "--anyway", action="store_true", help="also when it does not fit or is not supported"
    )
    check = command("verify", "Check the files of models against their published hashes.")
    check.add_argument("models", nargs="*", help="all of them if omitted")
    check.add_argument("--repair", action="store_true", help="fetch the bad files again")
    remove = command("remove", "Delete a model from this computer, for good.")
    remove.add_argument("model")
    remove.add_argument("--yes", action="store_true", help="do it; without it, only say what goes")
    token = command("token", "Keep an access token for gated models (asked for, not shown).")
    token.add_argument("--forget", action="store_true", help="remove the one that is kept")
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit status of `unblur models ARGV`."""
    options = make_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a path may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    commands: dict[str, Callable[[argparse.Namespace, ModelServices], int]] = {
        "list": _list,
        "search": _search,
        "get": _get,
        "verify": _verify,
        "remove": _remove,
        "token": _token,
    }
    try:
        status = commands[options.command](options, open_services())
        sys.stdout.flush()
        return status
    except UnblurError as error:
        print(_error_text(error, options.json), file=sys.stderr)
        return 1
    except (Interrupted, KeyboardInterrupt):
        print("Stopped. What was received is kept.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _list(options: argparse.Namespace, services: ModelServices) -> int:
    if options.catalog:
        entries = load_catalog()
        _show(options, {"models": [asdict(e) for e in entries]}, map(_catalog_line, entries))
        return 0
    view = services.library.scan()
    lines = [line for folder in view.folders for line in _folder_lines(folder)]
    document = {
        "folders": [
            {
                "path": v.folder.path,
                "kind": v.folder.kind,
                "presence": v.presence,
                "reason": v.reason,
            }
            for v in view.folders
        ],
        "models": [asdict(model) for model in view.models],
    }
    _show(options, document, lines)
    return 0


def _search(options: argparse.Namespace, services: ModelServices) -> int:
    found = services.hub.search(" ".join(options.words), options.limit)
    lines = map(_hub_line, found) if found else ["The hub has no safetensors model of this name."]
    _show(options, {"models": [asdict(model) for model in found]}, lines)
    return 0


def _get(options: argparse.Namespace, services: ModelServices) -> int:
    hub, root = services.hub, services.library.folders.download_to
    with _stopping() as stop:
        listing = hub.look_up(parse_ref(options.model, hub.endpoint))
        found = examine(hub, listing, stop)
    plan = plan_of(found, hub.endpoint)
    machine = look_at_machine(services).machine
    sum_ = fit(found, machine, options.context, kept_bytes(root, plan))
    document = {
        "model": asdict(listing.model),
        "fit": asdict(sum_),
        "support": asdict(found.support),
    }
    if options.dry_run:
        _show(options, document, _examined_lines(found, sum_))
        return 0
    if not options.json:
        print("\n".join(map(_harmless, _examined_lines(found, sum_))))
    why_not = _why_not(found, sum_)
    if why_not and not options.anyway:
        raise UnblurError("models.not_advised", why_not, "Get it anyway: add --anyway.")
    refuse_if_here(root, plan)
    path = _carried_out(Download(plan, root, services.tokens.get_for, Policy()))
    _show(options, {**document, "path": path}, [f"In {path}"])
    return 0


def _verify(options: argparse.Namespace, services: ModelServices) -> int:
    library = services.library
    names = options.models
    models = [library.find(name) for name in names] if names else list(library.scan().models)
    reports: list[Report] = []
    with _stopping() as stop:
        for model in models:
            report = verify(model, stop, _percent(f"Checking {model.name}"))
            if report.bad and options.repair:
                plan = plan_repair(services, report)
                _carried_out(Download(plan, model.root, services.tokens.get_for, Policy()))
                report = verify(library.find(str(model.path)), stop)
            reports.append(report)
    lines = [line for report in reports for line in _report_lines(report)]
    document = {
        "models": [
            {
                "name": r.model.name,
                "path": r.model.path,
                "proven": r.is_proven,
                "files": [asdict(check) for check in r.files],
            }
            for r in reports
        ]
    }
    _show(options, document, lines or ["There are no models on this computer."])
    return 1 if any(report.bad for report in reports) else 0


def _remove(options: argparse.Namespace, services: ModelServices) -> int:
    model = services.library.find(options.model)
    what = f"{model.name} ({gigabytes(model.size)}) in {model.path}"
    if not options.yes:
        raise UnblurError("models.not_confirmed", f"This deletes {what}.", "Do it: add --yes.")
    deleted = services.library.delete(model)
    services.library.destroy(deleted)
    _show(options, {"removed": model.path, "bytes": model.size}, [f"Deleted {what}"])
    return 0


def _token(options: argparse.Namespace, services: ModelServices) -> int:
    tokens = services.tokens
    if options.forget:
        tokens.forget()
        tokens.get()
        lines = ["The token is forgotten."]
        if tokens.where:
            lines.append(f"Another one, not entered here, stays in use ({tokens.where}).")
        _show(options, {"kept": tokens.where}, lines)
        return 0
    piped = not sys.stdin.isatty()
    tokens.save(sys.stdin.readline() if piped else getpass.getpass("Access token: "))
    account = services.hub.who()
    lines = [f"Kept in the {tokens.where}, for the account {account}."]
    if tokens.problem:
        lines.append(tokens.problem)
    _show(options, {"kept": tokens.where, "account": account}, lines)
    return 0


def _carried_out(download: Download) -> Path:
    """Runs a download with its progress on the terminal. Ctrl+C pauses it. Raises as its `run`."""
    outcome: list[Path | BaseException] = []

    def work() -> None:
        try:
            outcome.append(download.run())
        except BaseException as error:  # noqa: BLE001 - the thread's root: raised again below
            outcome.append(error)

    thread = threading.Thread(target=work, name="download")
    with _stopping(download.interrupt):
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
            _progress_line(download)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _progress_line(download: Download) -> None:
    if not sys.stderr.isatty():
        return
    done, rate, left, waiting = download.progress.figures()
    total = max(1, download.progress.total)
    words = waiting or (f"{gigabytes(int(rate))}/s" if rate is not None else "")
    if left is not None and not waiting:
        words += f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"
    print(f"\r\x1b[K{100 * done / total:5.1f} %  {words}", end="", file=sys.stderr, flush=True)


def _percent(what: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done >= total else ""
            print(f"\r\x1b[K{what}: {100 * done // max(1, total)} %", end=end, file=sys.stderr)

    return show


@contextlib.contextmanager
def _stopping(also: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """A stop that Ctrl+C sets; a second Ctrl+C ends the process. Only in the main thread."""
    stop = Stop()

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.set()
        also()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as for a process in the background
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _why_not(found: Examined, sum_: Fit) -> str:
    if found.support.state is not Supported.YES:
        return found.support.reason
    if Verdict.DOES_NOT_FIT in (sum_.verdict, sum_.disk_verdict):
        return sum_.sentences[0] if sum_.verdict is Verdict.DOES_NOT_FIT else sum_.disk_sentence
    return ""


def _show(options: argparse.Namespace, document: dict[str, Any], lines: Any) -> None:
    if options.json:
        print(json.dumps(document, indent=1, default=_plain))
    else:
        print("\n".join(map(_harmless, lines)))


def _count(text: str) -> int:
    """For argparse, which says of what kind a wrong argument should have been."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MOST} is needed")
    return number


def _harmless(line: str) -> str:
    """Names and facts come from elsewhere: what would drive a terminal is shown as its code."""
    return _DRIVING.sub(lambda found: ascii(found[0])[1:-1], line)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} in a report")


def _error_text(error: UnblurError, as_json: bool) -> str:
    if as_json:
        facts = {"code": error.code, "message": error.message, "action": error.action}
        link = getattr(error, "link", "")
        return json.dumps({"error": {**facts, **({"link": link} if link else {})}}, indent=1)
    return "\n".join(map(_harmless, (error.message, f"{error.action}  [{error.code}]")))


def _folder_lines(view: FolderView) -> list[str]:
    head = f"{view.folder.path} ({view.folder.kind})"
    if view.presence is not Presence.PRESENT:
        return [f"{head}: {view.presence}. {view.reason}"]
    lines = [f"  {_local_line(model)}" for model in view.models]
    if view.reason:
        lines.append(f"  {view.reason}")
    return [f"{head}:", *lines] if lines else [f"{head}: no models"]


def _local_line(model: LocalModel) -> str:
    commit = f" @{model.commit[:8]}" if model.commit else ""
    words = [gigabytes(model.size), model.quantisation, model.support.state.value]
    if model.support.state is not Supported.YES:
        words.append(model.support.reason)
    if model.problem:
        words.append(model.problem)
    return f"{model.name}{commit}: {', '.join(word for word in words if word)}"


def _hub_line(model: HubModel) -> str:
    words = [model.licence or "no licence stated"]
    words += ["gated"] if model.gated else []
    words += [f"{model.parameters / 1e9:.1f} B parameters"] if model.parameters else []
    words += [model.support.state.value]
    return f"{model.repo_id}: {', '.join(words)}"


def _catalog_line(entry: CatalogEntry) -> str:
    name = entry.repo_id or f"(search: {entry.search})"
    words = [f"{entry.parameters / 1e9:.1f} B parameters"] if entry.parameters else []
    words += [entry.quantisation] if entry.quantisation else []
    words += [entry.support.state.value]
    return f"{name}: {', '.join(words)}. {entry.about}"


def _examined_lines(found: Examined, sum_: Fit) -> list[str]:
    model = found.listing.model
    facts = [found.quantisation, f"licence {model.licence or 'not stated'}"]
    facts += [f"context {found.context}"] if found.context else []
    return [
        f"{model.repo_id} @{model.commit[:8]}: {', '.join(fact for fact in facts if fact)}",
        found.support.reason,
        *(line for line in sum_.sentences if line != found.support.reason),
    ]


def _report_lines(report: Report) -> list[str]:
    name = report.model.name
    if report.is_proven:
        return [f"{name}: every file is as published"]
    lines = [f"{name}: {len(report.bad)} bad of {len(report.files)} files"]
    return lines + [
        f"  {check.path}: {check.state}. {check.reason}" for check in report.files if check.reason
    ]
