"""Entering an access token for gated models: a field that is emptied at once, and where it is kept.

It knows what is said of a token. It refuses to show one: what was entered is never put back.
"""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QLineEdit

from app.models.access_token import TokenModel
from app.models.model_states import Keeping
from app.ui.model_parts import (
    CardFrame,
    ProblemCard,
    button,
    headed,
    open_page,
    put,
    row,
    text_label,
)
from app.ui.theme import Space, Theme


class TokenCard(CardFrame):
    closed = Signal()

    def __init__(self, theme: Theme, token: TokenModel) -> None:
        super().__init__(self.tr("Access token"))
        self._token = token
        self.endpoint = ""
        title = text_label("strong")
        title.setText(self.tr("Access token"))
        words = text_label("muted")
        words.setText(
            self.tr(
                "Some models are given only to people who are signed in and accepted a licence. The"
                " token is kept by the system's keyring where there is one, else in a file that"
                " only you can read. It is sent to the hub and to nobody else."
            )
        )
        self.state = text_label()
        self.note = text_label("warn")
        self.edit = QLineEdit()
        self.edit.setEchoMode(QLineEdit.EchoMode.Password)
        self.edit.setPlaceholderText(self.tr("hf_…"))
        self.edit.setAccessibleName(self.tr("Access token"))
        self.edit.setMaxLength(400)
        self.save = button(self.tr("Keep"), self.tr("Keep the access token"), kind="primary")
        self.forget = button(self.tr("Forget it"), self.tr("Forget the access token"))
        self.page = button(self.tr("Make one in the browser"), kind="link")
        self.close_button = button(self.tr("Close"), self.tr("Close the access token"), "link")
        self.problem = ProblemCard(theme)
        for part in (title, words, self.state, self.note, self.problem):
            self.inside.addWidget(part)
        self.inside.addSpacing(Space.XS)
        self.inside.addLayout(headed(self.edit, self.save))
        self.inside.addLayout(row(self.page, self.forget, None, self.close_button))
        self.edit.returnPressed.connect(self._save)
        self.edit.textChanged.connect(self.refresh)
        self.save.clicked.connect(self._save)
        self.forget.clicked.connect(token.forget)
        self.page.clicked.connect(lambda: open_page(f"{self.endpoint}/settings/tokens"))
        self.close_button.clicked.connect(self._close)
        token.changed.connect(self.refresh)
        self.refresh()

    @Slot()
    def refresh(self) -> None:
        kept, asking = self._token.kept, self._token.state is Keeping.ASKING
        words = self.tr("No token is kept.")
        if asking:
            words = self.tr("Asking…")
        elif kept.where in ("environment", "hugging face login"):
            words = self.tr("One is used that was not entered here ({0}).").format(kept.where)
        elif kept.where:
            words = self.tr("One is kept in the {0}.").format(kept.where)
        if kept.account and not asking:
            words += " " + self.tr("It belongs to the account {0}.").format(kept.account)
        put(self.state, words, "ok" if kept.account and not asking else "")
        put(self.note, kept.note)
        entered = bool(self.edit.text().strip())
        self.save.setEnabled(entered and not asking)
        self.save.setToolTip("" if entered else self.tr("Enter a token first"))
        self.forget.setVisible(kept.where in ("keyring", "file"))
        self.forget.setEnabled(not asking)
        if kept.problem is None or asking:
            self.problem.hide()
        else:
            link = bool(kept.problem.link)
            label = self.tr("Open the page") if link else self.tr("Close")
            self.problem.show_problem(kept.problem, "page" if link else "close", label)

    @Slot()
    def _save(self) -> None:
        token = self.edit.text()
        if token.strip() and self._token.state is not Keeping.ASKING:
            self.edit.clear()  # never shown again, whatever comes of it
            self._token.save(token)

    @Slot()
    def _close(self) -> None:
        self.edit.clear()
        self.hide()
        self.closed.emit()
