"""Bad files of a model as a download that puts them right, wherever the model lies.

It knows who can say what a file should be: our manifest, or for Hugging Face's cache the hub. It
refuses to fetch: the plan goes to the queue.
"""

from __future__ import annotations

from app.backend.hub.ref import ModelRef
from app.backend.library.folders import Kind, LibraryError
from app.backend.library.verify import Published, Report, repair_plan
from app.backend.model_services import ModelServices
from app.backend.transfer.plan import DownloadPlan


def plan_repair(services: ModelServices, report: Report) -> DownloadPlan:
    """What to fetch for the bad files of a report, into the model's own root. Asks the hub where
    the model is in its tools' cache: not for the GUI's thread. Raises LibraryError, HubError."""
    model = report.model
    if model.kind is not Kind.CACHE or not report.bad:
        return repair_plan(report)
    listing = services.hub.look_up(ModelRef(model.repo_id, model.commit))
    if listing.model.commit != model.commit:
        raise LibraryError(
            "library.not_published",
            f"The hub no longer has this version of {model.name}.",
            "Download another version into the models folder.",
        )
    return repair_plan(report, Published(services.hub.endpoint, listing.files))
