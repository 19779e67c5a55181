"""Writes an NVFP4 copy of a bfloat16 checkpoint: beside its place, continued after a kill, checked
by the engine's own reader, and put in its place as the last act.

Knows the order of things and what may go wrong with folders and disks. What is written is planned
in `plan` and made in `convert`.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine.checkpoint.checkpoint import Checkpoint, open_checkpoint
from engine.checkpoint.folder import TensorFiles, read_folder
from engine.checkpoint.quantiser.choice import Chosen, choose
from engine.checkpoint.quantiser.convert import convert, verify
from engine.checkpoint.quantiser.files import copied_names, write_report, write_side_files
from engine.checkpoint.quantiser.memory import peak_memory
from engine.checkpoint.quantiser.options import QuantiseOptions
from engine.checkpoint.quantiser.plan import Plan, PlannedFile, make_plan
from engine.checkpoint.quantiser.report import LogitDistance, QuantiseReport, group_errors, together
from engine.checkpoint.quantiser.rules import RULES
from engine.checkpoint.quantiser.state import (
    Journal,
    ModuleError,
    is_ours,
    remove_journal,
    sync_files,
    sync_folder,
)
from engine.checkpoint.refusals import printable, refuse
from engine.checkpoint.tensor_writer import NewFile
from engine.errors import RuntimeFailure, UnblurError
from engine.models.family import FamilySpec
from engine.types import LoadProgress

ProgressCallback = Callable[[LoadProgress], None]
Compare = Callable[[Path, Path], LogitDistance]

_SLACK = 64 << 20  # bytes kept free beside what is written
_FULL = (errno.ENOSPC, errno.EDQUOT)


def quantise(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: QuantiseOptions,
    *,
    compare: Compare | None = None,
    progress: ProgressCallback | None = None,
    stop: threading.Event | None = None,
) -> QuantiseReport:
    """Writes `target`, a folder that does not exist yet. Until it is complete and was opened by the
    engine's reader, everything lies in `target`.partial; the same call continues that.

    compare: measures the copy, given both folders (`engine.logit_distance`); if it fails, the
    report says why. progress and stop: as for a load. Raises CheckpointError for a source that
    cannot be used, a choice that cannot be met, a target that is taken or a disk that is full
    (codes `quantise.*`), RuntimeFailure `quantise.stopped`.
    """
    begun = time.monotonic()
    folder, place = Path(source), Path(target)
    _check_places(folder, place)
    partial = place.with_name(place.name + ".partial")
    _check_partial(partial)
    meter = _Meter(progress, stop, partial.name)
    checkpoint = meter.open(folder, "Checking the source")
    if checkpoint.layout != "bf16":
        raise refuse(
            "quantise.already_nvfp4",
            f"{printable(checkpoint.name)} is in NVFP4 already ({checkpoint.layout}).",
            "Choose the bfloat16 checkpoint that it was made from.",
            file="config.json",
        )
    chosen = choose(checkpoint.spec, options.choice)
    model = read_folder(folder)
    files = TensorFiles(model)
    try:
        plan = make_plan(
            checkpoint.spec,
            checkpoint.inventory,
            files.entries,
            chosen.modules,
            options,
            _source_state(files),
        )
        with _disk_faults(partial, place):
            partial.mkdir(parents=True, exist_ok=True)
            journal = Journal(partial, plan.fingerprint, options.restart)
            try:
                errors, resumed = _write_weights(plan, files, partial, journal, options, meter)
                notes = write_side_files(
                    model, checkpoint, chosen, plan, options, partial, place.name
                )
                written = meter.open(partial, "Checking the copy")
                report = _report(checkpoint, written, chosen, options, errors)
                report = replace(
                    report,
                    seconds=time.monotonic() - begun,
                    resumed=resumed,
                    copied=copied_names(model),
                    notes=notes,
                )
                if compare is not None:
                    report = meter.compared(report, compare, folder, partial)
                write_report(report, partial)
            finally:
                journal.close()  # before the folder moves, which Windows refuses otherwise
            _put_in_place(partial, place)
    finally:
        files.close()
    return report


def _report(
    checkpoint: Checkpoint,
    written: Checkpoint,
    chosen: Chosen,
    options: QuantiseOptions,
    errors: tuple[ModuleError, ...],
) -> QuantiseReport:
    """What is known from the two checkpoints and the errors."""
    spec = checkpoint.spec
    worst = sorted(errors, key=lambda error: -error.relative)
    return QuantiseReport(
        layout=options.layout,
        choice=chosen.words,
        family=checkpoint.title,
        modules={error.module: error.relative for error in worst},
        kinds=group_errors(errors, {e.module: spec.kind(e.module) for e in errors}),
        layers=group_errors(errors, {e.module: _layer(e.module, spec) for e in errors}),
        relative_error=together(errors),
        left=chosen.left,
        source_bytes=checkpoint.total_bytes,
        written_bytes=written.total_bytes,
        peak_bytes=peak_memory(),
    )


def _write_weights(
    plan: Plan,
    files: TensorFiles,
    partial: Path,
    journal: Journal,
    options: QuantiseOptions,
    meter: _Meter,
) -> tuple[tuple[ModuleError, ...], int]:
    """Writes what the journal does not know as done. Returns all errors, and how many units were
    done before."""
    _check_space(plan, partial)
    meter.begin(plan.read_bytes, "Quantising")
    resumed = sum(
        _write_file(planned, files, partial, journal, options, meter) for planned in plan.files
    )
    order = [unit.name for planned in plan.files for unit in planned.units]
    return tuple(error for name in order for error in journal.done[name].errors), resumed


def _write_file(
    planned: PlannedFile,
    files: TensorFiles,
    partial: Path,
    journal: Journal,
    options: QuantiseOptions,
    meter: _Meter,
) -> int:
    resumed = 0
    with NewFile(partial / planned.name, planned.layout) as out:
        for unit in planned.units:
            before = None if out.is_new else journal.done.get(unit.name)
            if before is not None and verify(before, unit, out):
                resumed += 1
                meter.add(unit.read_bytes)
                continue
            journal.add(convert(unit, files, out, RULES[options.layout], meter.add))
    return resumed


class _Meter:
    """Counts bytes, reports them, and ends the work when asked to."""

    def __init__(
        self, report: ProgressCallback | None, stop: threading.Event | None, partial: str
    ) -> None:
        self._report, self._stop, self._partial = report, stop, partial
        self._done, self._total, self._phase = 0, 0, ""

    def open(self, folder: Path, phase: str) -> Checkpoint:
        """A folder that has been validated, values included; its files are closed again."""
        report = self._report

        def progress(done: int, total: int) -> None:
            if report is not None:
                report(LoadProgress(done, total, phase))

        try:
            checkpoint = open_checkpoint(folder, progress=progress, stop=self._stop)
        except RuntimeFailure as error:
            if self._stopping:
                raise self._stopped() from error
            raise
        checkpoint.release()
        return checkpoint

    def compared(
        self, report: QuantiseReport, compare: Compare, source: Path, copy: Path
    ) -> QuantiseReport:
        """The copy is as good as before when it cannot be compared (too little memory, no
        template), so that this ends nothing; but being stopped does."""
        try:
            return replace(report, logits=compare(source, copy), not_compared="")
        except UnblurError as error:
            if self._stopping:
                raise self._stopped() from error
            return replace(report, not_compared=error.message)

    def begin(self, total: int, phase: str) -> None:
        self._done, self._total, self._phase = 0, total, phase

    def add(self, count: int) -> None:
        self._done += count
        if self._stopping:
            raise self._stopped()
        if self._report is not None:
            self._report(LoadProgress(self._done, self._total, self._phase))

    @property
    def _stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _stopped(self) -> RuntimeFailure:
        return RuntimeFailure(
            "quantise.stopped",
            f"Stopped; what is done so far is kept in {printable(self._partial)}.",
            "Start it again with the same options to continue.",
        )


def _check_places(source: Path, target: Path) -> None:
    if not os.fspath(target) or not target.name:
        raise refuse("quantise.no_target", "The target names no folder.", "Name a new folder.")
    if os.path.lexists(target):
        same = source.exists() and target.exists() and source.samefile(target)
        if same:
            raise refuse(
                "quantise.same_folder",
                "Source and target are the same folder.",
                "Name a new folder for the copy.",
                file=printable(str(target)),
            )
        raise refuse(
            "quantise.target_exists",
            f"{printable(str(target))} exists already, and is left as it is.",
            "Name a new folder for the copy.",
            file=printable(str(target)),
        )


def _check_partial(partial: Path) -> None:
    """An unfinished copy of ours is continued; anything else with that name is not touched."""
    if not os.path.lexists(partial) or (not partial.is_symlink() and is_ours(partial)):
        return
    raise refuse(
        "quantise.foreign_partial",
        f"{printable(str(partial))} is needed for the unfinished copy, but is something else.",
        "Rename or remove it, or name another target.",
        file=printable(str(partial)),
    )


def _check_space(plan: Plan, partial: Path) -> None:
    """Files that are there at their full size have their room already."""
    missing = sum(
        planned.layout.size
        for planned in plan.files
        if not (partial / planned.name).is_file()
        or (partial / planned.name).stat().st_size != planned.layout.size
    )
    free = shutil.disk_usage(partial).free
    if missing and missing + _SLACK > free:
        raise refuse(
            "quantise.no_space",
            f"The copy needs {(missing + _SLACK) / 1e9:.2f} GB more, and {free / 1e9:.2f} GB are"
            " free on that disk.",
            "Free some space, or name a target on another disk.",
            file=printable(str(partial)),
        )


def _source_state(files: TensorFiles) -> list[list[object]]:
    """Changes when a weight file of the source does."""
    return [
        [name, file.size, file.path.stat().st_mtime_ns]
        for name, file in sorted(files.files.items())
    ]


@contextmanager
def _disk_faults(partial: Path, place: Path) -> Iterator[None]:
    """Words what the system says of the target's disk. Reading has its own words."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise refuse(
                "quantise.no_space",
                f"The disk of {printable(str(place.parent))} is full.",
                f"Free some space and start it again: {printable(partial.name)} is continued.",
                file=printable(str(partial)),
            ) from error
        raise refuse(
            "quantise.unwritable",
            f"{printable(str(error.filename or partial))} cannot be written"
            f" ({error.strerror or error}).",
            "Check that you may write there and that the disk is connected, or name another"
            " target.",
            file=printable(str(partial)),
        ) from error


def _put_in_place(partial: Path, place: Path) -> None:
    if os.path.lexists(place):  # made by someone else meanwhile
        _check_places(partial, place)
    sync_files(partial)
    partial.rename(place)
    sync_folder(place.parent)
    remove_journal(place)


def _layer(module: str, spec: FamilySpec) -> str:
    """The number of the layer a module is in, "" for one outside the layers."""
    prefix = f"{spec.table.layers}."
    return module.removeprefix(prefix).partition(".")[0] if module.startswith(prefix) else ""
