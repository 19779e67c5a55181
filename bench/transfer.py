"""How fast a download is beside `curl` and a SHA-256 of the same file, from this computer.

Serves one file of random bytes from a process of its own (sendfile, ranges), fetches it in turn
with curl and with `app.backend.transfer`, and prints the median of each. Two figures of curl are
kept: curl and then sha256sum, one after the other, and curl with sha256sum reading along (`tee`).
Ours writes, hashes, syncs and publishes; all end with the file on the disk. The target is 70 %
of curl's speed. Knows nothing of real networks, where the line is the limit.

Usage: `python -m bench.transfer [--megabytes N] [--rounds N] [--folder DIR] [--json FILE]`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from app.backend.transfer.download import Download
from app.backend.transfer.fetch import Policy
from app.backend.transfer.files import RemoteFile
from app.backend.transfer.plan import DownloadPlan

TARGET = 0.70
COMMIT = "0" * 40


def serve(path: str, ports: Queue[int]) -> None:
    """Runs in a process of its own until it is ended."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def do_GET(self) -> None:
            size = os.path.getsize(path)
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            self.wfile.flush()
            with open(path, "rb") as source:
                while start < size:
                    start += os.sendfile(
                        self.connection.fileno(), source.fileno(), start, min(size - start, 1 << 24)
                    )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ports.put(server.server_address[1])
    server.serve_forever()


def ours(port: int, file: RemoteFile, folder: Path) -> None:
    plan = DownloadPlan("bench/file", COMMIT, f"http://127.0.0.1:{port}", (file,))
    Download(plan, folder, lambda _: None, Policy()).run()


def curl_then_hash(port: int, file: RemoteFile, folder: Path) -> None:
    target = folder / file.path
    fetch = ["curl", "-s", "-o", str(target), f"http://127.0.0.1:{port}/file"]
    subprocess.run(fetch, check=True)
    _check(subprocess.run(["sha256sum", str(target)], capture_output=True, check=True), file)


def curl_beside_hash(port: int, file: RemoteFile, folder: Path) -> None:
    target = folder / file.path
    line = f'curl -s http://127.0.0.1:{port}/file | tee "$0" | sha256sum'
    command = ["bash", "-o", "pipefail", "-c", line, str(target)]
    _check(subprocess.run(command, capture_output=True, check=True), file)


def _check(answer: subprocess.CompletedProcess[bytes], file: RemoteFile) -> None:
    if answer.stdout.split()[0].decode() != file.sha256:
        raise SystemExit("curl's file is another one")


def write_noise(path: Path, megabytes: int) -> str:
    """The file's SHA-256."""
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for _ in range(megabytes):
            data = os.urandom(1 << 20)
            digest.update(data)
            out.write(data)
    return digest.hexdigest()


def seconds(way: Callable[[int, RemoteFile, Path], None], port: int, file: RemoteFile) -> float:
    folder = Path(tempfile.mkdtemp())
    try:
        begun = time.perf_counter()
        way(port, file, folder)
        return time.perf_counter() - begun
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files go (a temporary folder)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tempfile.tempdir = str(options.folder) if options.folder else None
    source = Path(tempfile.mkdtemp()) / "model.safetensors"
    ports: Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(str(source), ports), daemon=True)
    try:
        digest = write_noise(source, options.megabytes)
        file = RemoteFile(source.name, source.stat().st_size, sha256=digest)
        server.start()
        port = ports.get()
        ways = {
            "ours": ours,
            "curl, then sha256sum": curl_then_hash,
            "curl | tee | sha256sum": curl_beside_hash,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                taken[name].append(seconds(way, port, file))
    finally:
        server.terminate()
        shutil.rmtree(source.parent)
    report = describe(taken, file.size)
    print(json.dumps(report, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if report["share of the faster curl"] >= TARGET else 1


def describe(taken: dict[str, list[float]], size: int) -> dict[str, Any]:
    speeds = {name: size / statistics.median(each) / 1e6 for name, each in taken.items()}
    best = max(speed for name, speed in speeds.items() if name != "ours")
    return {
        "command": "python -m bench.transfer " + " ".join(sys.argv[1:]),
        "megabytes": size / 1e6,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "median MB/s": {name: round(speed, 1) for name, speed in speeds.items()},
        "seconds": {name: [round(s, 3) for s in each] for name, each in taken.items()},
        "share of the faster curl": round(speeds["ours"] / best, 3),
        "target": TARGET,
    }


if __name__ == "__main__":
    sys.exit(main())
