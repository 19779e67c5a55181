"""Facts about models as words: sizes, times, verdicts, and what a card offers.

It knows how each is worded. It refuses to know widgets.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.backend.hub.fit import Fit, Verdict
from app.backend.hub.support import Support, Supported
from app.backend.judge import Judged
from app.backend.library.folders import Kind
from app.backend.library.scan import LocalModel
from app.backend.transfer.queue import DownloadView, Problem, State
from app.models.find import FindCard, Look
from app.models.model_states import Looking

AGAIN = ("hub.unreachable", "hub.busy", "hub.odd_answer", "hub.refused")  # may pass by itself
BETWEEN = " · "
SUPPORT_WORDS = {
    Supported.YES: ("Supported", "ok"),
    Supported.NOT_YET: ("Not built yet", "warn"),
    Supported.NO: ("Refused", "bad"),
    Supported.UNKNOWN: ("Not known", ""),
}
FIT_WORDS = {
    Verdict.FITS: ("Fits", "ok"),
    Verdict.TIGHT: ("Tight", "warn"),
    Verdict.DOES_NOT_FIT: ("Does not fit", "bad"),
    Verdict.UNKNOWN: ("Fit not known", ""),
}
KIND_WORDS = {
    Kind.MODELS: "models folder",
    Kind.CACHE: "Hugging Face's cache, read in place",
    Kind.MODEL: "one model",
}


def size(count: int) -> str:
    """Bytes in powers of 1000."""
    if count < 1000:
        return plural(count, "byte", "bytes")
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.1f} kB"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def join(*facts: str) -> str:
    return BETWEEN.join(fact for fact in facts if fact)


def _parameters(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.1f} B parameters" if count >= 1e9 else f"{count / 1e6:.0f} M parameters"


def _context(count: int | None) -> str:
    return f"context {count:,}" if count else ""


def local_facts(model: LocalModel) -> str:
    """The one line of a model on this computer."""
    version = f"version {model.commit[:8]}" if model.commit else ""
    licence = f"licence {model.licence}" if model.licence else ""
    return join(
        model.support.family,
        model.quantisation,
        size(model.size),
        licence,
        _context(model.context),
        version,
    )


def find_facts(card: FindCard, judged: Judged | None) -> str:
    """The one line of a model on the hub: what its files say, once they were looked at."""
    if judged is None:
        return join(
            card.family,
            card.quantisation,
            size(card.weight_bytes) if card.weight_bytes else "",
            _parameters(card.parameters),
            f"licence {card.licence}" if card.licence else "",
            _context(card.context),
            "gated" if card.gated else "",
        )
    model = judged.model
    return join(
        judged.support.family or card.family,
        judged.quantisation or card.quantisation,
        size(judged.weight_bytes),
        _parameters(judged.parameters),
        f"licence {model.licence or 'not stated'}",
        _context(judged.context),
        f"version {model.commit[:8]}",
        "gated" if model.gated else "",
    )


def facts_tip(card: FindCard, judged: Judged | None) -> str:
    """Where the facts come from."""
    if judged is not None:
        return "Read from the model's own files, not from its name."
    if not card.source:
        return "From the hub's list. The files have not been looked at."
    lines = [f"From the list that ships with Unblur. Its source: {card.source}."]
    if card.unverified:
        names = ", ".join(name.replace("_", " ") for name in card.unverified)
        lines.append(f"Second hand, not checked by this project: {names}.")
    return "\n".join(lines)


def fit_line(found: Fit) -> tuple[str, str]:
    """(words, tone) of the one sentence under a card: the verdict's reason, and a step's time where
    it is known."""
    words = found.sentences[0]
    if found.ms_per_step is not None and found.verdict is not Verdict.DOES_NOT_FIT:
        words = f"{words.rstrip('.')}, about {milliseconds(found.ms_per_step)} a step."
    tones = {Verdict.FITS: "ok", Verdict.TIGHT: "warn", Verdict.DOES_NOT_FIT: "wrong"}
    if found.disk_verdict is Verdict.DOES_NOT_FIT:
        return f"{words}\n{found.disk_sentence}", "wrong"
    return words, tones.get(found.verdict, "muted")


def milliseconds(value: float) -> str:
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 2000 else f"{value / 1000:.1f} s"


def support_words(support: Support) -> tuple[str, str, str]:
    """(badge, its tone, the reason)."""
    return (*SUPPORT_WORDS[support.state], support.reason)


@dataclass(frozen=True)
class Offer:
    """What a card's one button does: "look", "retry", "search", "get", "downloads", "use"
    or "wait" (nothing)."""

    label: str
    action: str
    kind: str = ""
    tip: str = ""


def offer(
    card: FindCard, look: Look, here: LocalModel | None, download: DownloadView | None, context: int
) -> Offer:
    """here: this version on this computer (any version while it has not been looked at). download:
    of this version."""
    if card.ref is None:
        tip = "Its name on the hub is not known for sure, so it is searched for."
        return Offer("Search the hub", "search", tip=tip)
    if download is not None and download.state is not State.DONE:
        return Offer("In downloads", "downloads")
    if here is not None:
        return Offer("Use", "use", "primary", str(here.path))
    if look.state is Looking.LOOKING:
        return Offer("Looking…", "wait", tip="Its files' headers are being read.")
    if look.state is Looking.FAILED:
        # the error's own button does what helps; after that the model is asked for again here
        helped = look.problem is not None and help_with(look.problem) != "retry"
        return Offer("Try again", "retry") if helped else Offer("", "wait")
    if look.judged is None:
        return Offer("Does it fit?", "look", tip="Reads some hundred kilobytes of its files.")
    fit = look.judged.fits[context]
    against = look.judged.why_not(context)
    if against:
        return Offer(f"Get it anyway, {size(fit.download)}", "get", tip=against)
    return Offer(f"Get, {size(fit.download)}", "get", "primary", fit.disk_sentence)


def help_with(problem: Problem) -> str:
    """What helps against a hub's refusal: "token", "page" or "retry"."""
    if problem.code in ("hub.no_token", "hub.token_invalid"):
        return "token"
    return "page" if problem.link and problem.code not in AGAIN else "retry"


def download_words(view: DownloadView) -> str:
    """Where a download stands, in one line."""
    share = f"{size(view.done_bytes)} of {size(view.total_bytes)}"
    if view.state is State.DONE:
        return f"{size(view.total_bytes)}, every file verified"
    if view.state is State.QUEUED:
        return join("Waiting for its turn", share)
    if view.state is State.PAUSED:
        return join("Paused", share)
    if view.state is State.FAILED:
        return join("Stopped by a problem", share)
    rate = f"{size(round(view.bytes_per_second))}/s" if view.bytes_per_second else ""
    left = f"{duration(view.seconds_left)} left" if view.seconds_left is not None else ""
    return join(share, *((rate, left) if not view.waiting else ()))
