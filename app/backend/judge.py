"""One model of the hub, judged for this machine: what it is, whether it runs, whether it fits.

It knows the order of the questions and which of the answers are worth keeping. It refuses to
decide: what to do with the verdict is a person's choice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.hub.client import HubListing, HubModel
from app.backend.hub.examine import Examined, examine
from app.backend.hub.fit import Fit, Machine, Verdict, fit, machine_now
from app.backend.hub.ref import ModelRef
from app.backend.hub.support import Support, Supported
from app.backend.model_services import ModelServices
from app.backend.preload import collector_resting, preload_torch
from app.backend.transfer.download import kept_bytes
from app.backend.transfer.plan import DownloadPlan
from app.backend.transfer.stop import Stop
from engine.openmp import let_threads_sleep

if TYPE_CHECKING:
    from engine.hardware import HardwareReport

CONTEXTS = (1024, 4096, 8192, 16384, 32768, 131072)  # what a fit can be asked for
USUAL_CONTEXT = 4096


@dataclass(frozen=True)
class Judged:
    """What remains of an examination: no tensor is listed here, so that many can be kept.

    plan: ready for the queue. root: where it would go. weight_bytes, context, parameters: as
    `Examined`. fits: for each of CONTEXTS."""

    listing: HubListing
    plan: DownloadPlan
    root: Path
    support: Support
    quantisation: str
    weight_bytes: int
    context: int | None
    parameters: int | None
    fits: Mapping[int, Fit]

    @property
    def model(self) -> HubModel:
        return self.listing.model

    def why_not(self, context: int) -> str:
        """The sentence that speaks against getting it, "" where none does."""
        found = self.fits[context]
        if self.support.state is not Supported.YES:
            return self.support.reason
        if found.verdict is Verdict.DOES_NOT_FIT:
            return found.sentences[0]
        if found.disk_verdict is Verdict.DOES_NOT_FIT:
            return found.disk_sentence
        return ""


@dataclass(frozen=True)
class MachineReport:
    """The machine as models are judged for it. kernel_path: how it would multiply."""

    machine: Machine
    kernel_path: str


def judge(services: ModelServices, ref: ModelRef, stop: Stop) -> Judged:
    """Looks a model up and reckons. Waits for the network, and imports torch.

    Raises HubError, TransferError, LibraryError, Interrupted.
    """
    listing = services.hub.look_up(ref)
    found = examine(services.hub, listing, stop)
    root = services.library.folders.download_to
    plan = plan_of(found, services.hub.endpoint)
    kept = kept_bytes(root, plan)
    machine = look_at_machine(services).machine
    stop.check()
    return Judged(
        listing=listing,
        plan=plan,
        root=root,
        support=found.support,
        quantisation=found.quantisation,
        weight_bytes=found.weight_bytes,
        context=found.context,
        parameters=found.parameters,
        fits={context: fit(found, machine, context, kept) for context in CONTEXTS},
    )


def plan_of(found: Examined, endpoint: str) -> DownloadPlan:
    """What `examine` has found, as a download."""
    model = found.listing.model
    return DownloadPlan(model.repo_id, model.commit, endpoint, found.files, model.licence)


def look_at_machine(services: ModelServices) -> MachineReport:
    """Free memory and disk at this moment, and the bandwidth where it was measured. Imports torch.
    Raises LibraryError where the models folder cannot be made."""
    report = describe()
    root = services.library.folders.download_to
    machine = machine_now(report, root, services.bandwidth(report.cpu_name))
    if machine.device_name != report.cpu_name:
        machine = machine_now(report, root, services.bandwidth(machine.device_name))
    return MachineReport(machine, report.kernel_path)


def describe() -> HardwareReport:
    """`describe_hardware`, with torch brought into memory gently first."""
    if "torch" not in sys.modules:
        let_threads_sleep()
        preload_torch()
        with collector_resting():
            import engine.loading  # noqa: F401 - what `fit` will ask, and torch with it
    from engine.hardware import describe_hardware

    return describe_hardware()
