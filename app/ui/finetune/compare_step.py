"""Step 6: base against tuned: what got worse first, then what got better.

It knows the run's own measurements. It refuses to measure anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Slot

from app.models.finetune_run import RunModel
from app.ui.finetune.run_step import Curve
from app.ui.finetune.step_page import StepPage, figure
from app.ui.model_parts import put, text_label
from app.ui.theme import Theme


class CompareStep(StepPage):
    def __init__(self, theme: Theme, run: RunModel) -> None:
        super().__init__(
            self.tr("Compare"),
            self.tr("The start model and the best checkpoint, on rows that were never trained on."),
        )
        self._run = run
        verdict = self.card(self.tr("In words"))
        self.worse = text_label("warn")
        self.words = text_label()
        verdict.inside.addWidget(self.worse)
        verdict.inside.addWidget(self.words)
        table = self.card(self.tr("Figures"))
        self.table = figure()
        table.inside.addWidget(self.table)
        over = self.card(self.tr("Held-out rows over the run"))
        self.accuracy = Curve(theme, self.tr("Verified, share"))
        self.tpf = Curve(theme, self.tr("Tokens per forward"))
        over.inside.addWidget(self.accuracy)
        over.inside.addWidget(self.tpf)
        self.column.addStretch(1)
        run.changed.connect(self.refresh)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        watched = self._run.watched
        start, best = watched.start, watched.best
        points = watched.validations
        self.accuracy.show_points([(v["update"], v.get("accuracy")) for v in points])
        self.tpf.show_points([(v["update"], v.get("tpf")) for v in points])
        if start is None or best is None:
            put(self.worse, "")
            put(self.words, self.tr("Nothing to compare yet: the run has not measured twice."))
            put(self.table, "")
            return
        worse, better = self._sentences(start, best)
        put(self.worse, "\n".join(worse))
        put(self.words, "\n".join(better))
        rows = [
            ("", self.tr("start"), self.tr("tuned")),
            (self.tr("verified"), *(f"{100 * v['accuracy']:.1f} %" for v in (start, best))),
            (self.tr("tokens per forward"), *(f"{v['tpf']:.2f}" for v in (start, best))),
            (
                self.tr("share of the ceiling"),
                *(f"{100 * v['share_of_ceiling']:.0f} %" for v in (start, best)),
            ),
            (self.tr("forwards an answer"), *(f"{v['forwards']:.2f}" for v in (start, best))),
            (self.tr("tokens an answer"), *(f"{v['tokens']:.1f}" for v in (start, best))),
        ]
        put(self.table, "\n".join(f"{a:<24}{b:>12}{c:>12}" for a, b, c in rows))

    def _sentences(
        self, start: Mapping[str, Any], best: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """What got worse, and what got better."""
        worse, better = [], []
        points = 100 * (best["accuracy"] - start["accuracy"])
        text = self.tr("{0} points {1} answers are right.")
        if points < 0:
            worse.append(text.format(f"{-points:.1f}", self.tr("fewer")))
        else:
            better.append(text.format(f"{points:.1f}", self.tr("more")))
        ratio = best["tpf"] / start["tpf"] if start["tpf"] else 1.0
        speed = self.tr("A forward gives {0} times the tokens.").format(f"{ratio:.2f}")
        (worse if ratio < 1 else better).append(speed)
        shorter = best["tokens"] / start["tokens"] if start["tokens"] else 1.0
        if shorter < 0.9:
            worse.append(
                self.tr("Answers are {0} % shorter, which flatters the speed.").format(
                    f"{100 * (1 - shorter):.0f}"
                )
            )
        better.append(
            self.tr("Measured after update {0}, on the run's held-out rows.").format(best["update"])
        )
        return worse, better

    def decided(self) -> str:
        best, start = self._run.watched.best, self._run.watched.start
        if best is None or start is None or not start["tpf"]:
            return ""
        return self.tr("{0} times the TPF").format(f"{best['tpf'] / start['tpf']:.2f}")
