"""The menu of trace files: open, save, export; the dialogs that ask where.

It knows names, endings and dialogs. It refuses to know how a file is read or written
(`app.models.inspector_files`).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from PySide6.QtCore import QStandardPaths, Qt, Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu, QPushButton, QWidget

from app.backend.trace_export import FORMATS, ExportFormat, ExportOptions, export_trace
from app.models.inspector import DEFAULT_SPEED, InspectorModel
from app.models.inspector_files import InspectorFiles
from app.ui.theme import Theme
from engine.trace import EXTENSION

_UNFIT = re.compile(r'[<>:"/\\|?*\x00-\x1f]+')


class FileMenu(QPushButton):
    def __init__(
        self,
        theme: Theme,
        model: InspectorModel,
        files: InspectorFiles,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._model = model
        self._files = files
        self._folder = QStandardPaths.writableLocation(
            QStandardPaths.StandardLocation.DocumentsLocation
        )
        self.setText(self.tr("Trace  ▾"))
        self.setAccessibleName(self.tr("Trace files: open, save, export"))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        menu = QMenu(self)
        self.open_action = self._add(menu, self.tr("Open trace…"), self.ask_open)
        self.save_action = self._add(menu, self.tr("Save trace…"), self.ask_save)
        self.exports = menu.addMenu(self.tr("Export"))
        self.export_actions: dict[ExportFormat, QAction] = {}
        for kind in FORMATS:
            action = self.exports.addAction(self._format_name(kind))
            action.triggered.connect(partial(self.ask_export, kind))
            self.export_actions[kind] = action
        self.setMenu(menu)
        model.trace_changed.connect(self._refresh)
        self._refresh()

    def _add(self, menu: QMenu, name: str, slot: object) -> QAction:
        action = menu.addAction(name)
        action.triggered.connect(slot)
        return action

    @Slot()
    def _refresh(self) -> None:
        self.save_action.setEnabled(self._model.data is not None)
        self.exports.setEnabled(self._model.data is not None)

    @Slot()
    def ask_open(self) -> None:
        path, _ = QFileDialog.getOpenFileName(
            self, self.tr("Open a trace"), self._folder, self._filter()
        )
        if path:
            self._folder = str(Path(path).parent)
            self._files.open(path)

    @Slot()
    def ask_save(self) -> None:
        path = self.ask_where(self.tr("Save the trace"), EXTENSION, self._filter())
        if path:
            self._files.save(path)

    def _format_name(self, kind: ExportFormat) -> str:
        return {
            "csv": self.tr("Table (CSV)…"),
            "png": self.tr("Picture of the raster (PNG)…"),
            "gif": self.tr("Animation (GIF)…"),
            "webp": self.tr("Animation (WebP)…"),
            "html": self.tr("Replay for a browser (HTML)…"),
        }[kind]

    def ask_export(self, kind: ExportFormat, _checked: bool = False) -> None:
        """Asks where, then writes the trace that is shown in another format."""
        ending = f".{kind}"
        path = self.ask_where(self.tr("Export the trace"), ending, f"{kind.upper()} (*{ending})")
        if not path:
            return
        options = ExportOptions(
            dark=self._theme.dark,
            fill="entropy" if self._model.fill == "entropy" else "confidence",
            steps_per_second=float(self._model.speed or DEFAULT_SPEED),
            overwrite=True,  # the dialog has asked
        )
        self._files.write(path, lambda trace, target: export_trace(trace, target, kind, options))

    def ask_where(self, title: str, ending: str, kinds: str) -> str:
        """A path that ends in `ending`, "" when the dialog was left. Replacing a file is asked for
        by the dialog, of the very name that is written."""
        suggested = str(Path(self._folder) / (suggested_name(self._model) + ending))
        dialog = QFileDialog(self, title, suggested, kinds)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(ending.lstrip("."))
        dialog.selectFile(suggested)
        chosen = dialog.selectedFiles() if dialog.exec() else []
        dialog.deleteLater()
        if not chosen:
            return ""
        self._folder = str(Path(chosen[0]).parent)
        return chosen[0]

    def _filter(self) -> str:
        return self.tr("Traces (*{0})").format(EXTENSION)


def suggested_name(model: InspectorModel) -> str:
    """A file's name without its ending, from what the trace is of."""
    data = model.data
    header = data.trace.header if data else None
    asked = header.messages[-1].content if header and header.messages else model.title
    name = _UNFIT.sub(" ", asked.removesuffix(EXTENSION)).strip(" .")[:48].strip(" .")
    return name or "trace"
