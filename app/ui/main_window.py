"""The window: rail, pages, notices and the status bar, and the few things that concern all of them.

It knows which pages exist, the window-wide shortcuts and how closing works. It refuses to know what
a page does.
"""

from __future__ import annotations

import time
from pathlib import Path

from PySide6.QtCore import QByteArray, QSettings, QSize, Qt, Slot
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.backend.files import DEMO_MODEL, AppFolders
from app.backend.settings import SettingsStore
from app.backend.training import TrainingRuns
from app.models.chat import ChatModel
from app.models.engine_model import EngineModel
from app.models.finetune import FinetuneModel
from app.models.finetune_fit import FitModel
from app.models.finetune_run import RunModel
from app.models.gpu_meter import GpuMeter
from app.models.inspector import InspectorModel
from app.models.inspector_compare import CompareModel
from app.models.inspector_files import InspectorFiles, is_trace_file
from app.models.inspector_forks import ForkModel
from app.models.inspector_why import WhyModel
from app.models.model_store import ModelStore
from app.models.server import ServerModel
from app.ui.chat_page import ChatPage
from app.ui.finetune.page import FinetunePage
from app.ui.icons import app_icon
from app.ui.inspector.page import InspectorPage
from app.ui.models_page import ModelsPage
from app.ui.rail import Rail, RailEntry
from app.ui.settings_page import SettingsPage
from app.ui.status_bar import StatusBar
from app.ui.theme import Space, Theme


class Banner(QFrame):
    """Sentences that concern the whole window (something cannot be saved), until dismissed."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("banner")
        self.label = QLabel(self)
        self.label.setProperty("tone", "warn")
        self.label.setWordWrap(True)
        self.label.setTextFormat(Qt.TextFormat.PlainText)
        self.button = QPushButton(self.tr("Dismiss"), self)
        self.button.setProperty("kind", "quiet")
        self.button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.button.setAccessibleName(self.tr("Dismiss the notice"))
        self.button.clicked.connect(self._dismiss)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(Space.L, Space.XS, Space.S, Space.XS)
        layout.addWidget(self.label, 1)
        layout.addWidget(self.button)
        self._dismissed: set[str] = set()
        self._shown: list[str] = []
        self.hide()

    def show_sentences(self, sentences: list[str]) -> None:
        self._shown = [s for s in sentences if s not in self._dismissed]
        self.label.setText("\n".join(self._shown))
        self.setVisible(bool(self._shown))

    @Slot()
    def _dismiss(self) -> None:
        self._dismissed.update(self._shown)
        self.hide()


class MainWindow(QMainWindow):
    def __init__(
        self,
        theme: Theme,
        settings: SettingsStore,
        folders: AppFolders,
        engine: EngineModel,
        chat: ChatModel,
        meter: GpuMeter,
        store: ModelStore,
        server: ServerModel,
        geometry: QSettings | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self._theme = theme
        self._settings = settings
        self._engine = engine
        self._chat = chat
        self._meter = meter
        self._store = store
        self._server = server
        self._geometry = geometry
        self._notices = notices
        self.setWindowTitle("Unblur")
        self.setWindowIcon(app_icon())
        self.setMinimumSize(QSize(960, 640))
        self.resize(1280, 800)
        self.banner = Banner(self)
        self.inspector = InspectorModel(engine, self)
        self.chat_page = ChatPage(theme, chat, self.inspector, self)
        self.trace_files = InspectorFiles(self.inspector, self)
        self.forks = ForkModel(engine, self.inspector, self)
        self.comparison = CompareModel(self.inspector, self)
        self.why = WhyModel(engine, self.inspector, self)
        self.inspector_page = InspectorPage(
            theme,
            self.inspector,
            self.trace_files,
            self.forks,
            self.comparison,
            self.why,
            settings,
            self,
        )
        self.setAcceptDrops(True)
        self.models_page = ModelsPage(theme, store, engine, self)
        self._add_finetune(folders)
        self.settings_page = SettingsPage(theme, settings, folders, server, self)
        self.status_bar = StatusBar(theme, engine, meter, self)
        self._pages = {
            "chat": self.chat_page,
            "inspector": self.inspector_page,
            "models": self.models_page,
            "finetune": self.finetune_page,
            "settings": self.settings_page,
        }
        self.rail = Rail(
            theme,
            (
                RailEntry("chat", self.tr("&Chat"), "chat", 1),
                RailEntry("inspector", self.tr("&Inspector"), "inspector", 2),
                RailEntry("models", self.tr("&Models"), "models", 3),
                RailEntry("finetune", self.tr("&Finetune"), "finetune", 4),
                RailEntry("settings", self.tr("&Settings"), "settings", 5, bottom=True),
            ),
            self,
        )
        self._lay_out()
        self._connect()
        self.rail.choose("chat")
        self._show_problems()
        kept = geometry.value("geometry") if geometry is not None else None
        if isinstance(kept, QByteArray):  # the file may hold anything
            self.restoreGeometry(kept)
        if geometry is not None and geometry.value("peek") == "closed":
            self.chat_page.peek.set_open(False)

    def _add_finetune(self, folders: AppFolders) -> None:
        runs = TrainingRuns(folders.data / "runs")
        self.finetune = FinetuneModel(folders.data, runs, self)
        self.fit = FitModel(self)
        self.training = RunModel(runs, self)
        self.finetune_page = FinetunePage(
            self._theme,
            self.finetune,
            self.fit,
            self.training,
            self._store,
            folders.data / "models",
            self,
        )

    def _lay_out(self) -> None:
        self._stack = QStackedWidget(self)
        for page in self._pages.values():
            self._stack.addWidget(page)
        right = QVBoxLayout()
        right.setSpacing(0)
        right.addWidget(self.banner)
        right.addWidget(self._stack, 1)
        across = QHBoxLayout()
        across.setSpacing(0)
        across.addWidget(self.rail)
        across.addLayout(right, 1)
        body = QWidget(self)
        down = QVBoxLayout(body)
        down.setContentsMargins(0, 0, 0, 0)
        down.setSpacing(0)
        down.addLayout(across, 1)
        down.addWidget(self.status_bar)
        self.setCentralWidget(body)

    def _connect(self) -> None:
        self.rail.chosen.connect(self.show_page)
        self.chat_page.action.connect(self._act)
        self.chat_page.inspect_pressed.connect(self.inspect)
        for source in (self.models_page, self.status_bar):
            source.open_pressed.connect(self.open_model_folder)
            source.demo_pressed.connect(self._engine.load_demo)
        self.models_page.use_pressed.connect(self._use)
        self.finetune_page.use_pressed.connect(self._use)
        self.settings_page.changed.connect(self._apply_settings)
        self._chat.problem_changed.connect(self._show_problems)
        QShortcut(QKeySequence(Qt.Key.Key_Escape), self).activated.connect(self._chat.stop)
        QShortcut(QKeySequence.StandardKey.Open, self).activated.connect(self.open_model_folder)

    @Slot(str)
    def show_page(self, key: str) -> None:
        self._stack.setCurrentWidget(self._pages[key])
        if key == "chat":
            self.chat_page.composer.edit.setFocus(Qt.FocusReason.OtherFocusReason)
        else:
            self._pages[key].setFocus(Qt.FocusReason.OtherFocusReason)

    @Slot()
    def open_model_folder(self) -> None:
        """Asks for a folder and loads it."""
        start = self._engine.path or str(Path.home())
        folder = QFileDialog.getExistingDirectory(self, self.tr("Open model folder"), start)
        if folder:
            self._engine.load(folder)

    @Slot(str)
    def inspect(self, message_id: str) -> None:
        """Shows an answer on the inspector's page."""
        title = self._chat.prompt_of(message_id).partition("\n")[0] or self.tr("An answer")
        if self.inspector.show_answer(message_id, title):
            self.rail.choose("inspector")

    def open_trace(self, path: str) -> None:
        """Shows a trace file on the inspector's page; no model is needed."""
        self.rail.choose("inspector")
        self.trace_files.open(path)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_trace(event):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        path = dropped_trace(event)
        if path:
            self.open_trace(path)
            event.acceptProposedAction()

    @Slot(str)
    def _use(self, path: str) -> None:
        """Loads a model of the library, and shows the chat it is for."""
        self._engine.load(path)
        self.rail.choose("chat")

    @Slot(str)
    def _act(self, action: str) -> None:
        if action == "open":
            self.open_model_folder()
        elif action == "demo":
            self._engine.load_demo()
        elif action == "reload":
            self._engine.load(self._engine.path or str(DEMO_MODEL))

    @Slot()
    def _apply_settings(self) -> None:
        current = self._settings.current
        self._theme.reduce_motion = current.reduce_motion
        if current.appearance != self._theme.appearance:
            self._theme.choose(current.appearance)
        self._show_problems()

    @Slot()
    def _show_problems(self) -> None:
        problems = [self._settings.problem, self._chat.problem, self._chat.notice, *self._notices]
        self.banner.show_sentences([p for p in problems if p])

    def closeEvent(self, event: QCloseEvent) -> None:
        """The window goes at once; the engine is stopped and its memory given back before the
        process ends.
        """
        if self._geometry is not None:
            self._geometry.setValue("geometry", self.saveGeometry())
            self._geometry.setValue("peek", "open" if self.chat_page.peek.open else "closed")
        self.hide()
        self._meter.close()
        for model in (self.finetune, self.fit, self.training):
            model.close(time.monotonic() + 1.0)
        self._server.close()
        if self._engine.close():
            self._chat.close()
        self._store.close()
        self.trace_files.close()
        self.comparison.close()
        super().closeEvent(event)


def dropped_trace(event: QDropEvent) -> str:
    """The first trace file of what is dragged, "" when there is none."""
    paths = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
    return next((path for path in paths if is_trace_file(path)), "")
