"""The one Qt style sheet, built from the theme's colours.

It knows which widget names exist and how each is drawn. It refuses to hold a colour of its own.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.ui.theme import Colors

_SHEET = Template("""
* { outline: none; }
QWidget { font-family: "Inter"; font-size: 13px; color: $text; }
QMainWindow, QDialog, #page, #column, #chatMain { background: $window; }
QToolTip { background: $raised; color: $text; border: 1px solid $line; padding: 6px 8px; }

QPushButton {
    background: $surface; color: $text; border: 1px solid $line; border-radius: 6px;
    padding: 0 12px; min-height: 30px;
}
QPushButton:hover { border-color: $muted; }
QPushButton:pressed { background: $window; }
QPushButton:focus { border: 2px solid $accent; padding: 0 11px; min-height: 28px; }
QPushButton:disabled { color: $muted; background: $window; }
QPushButton[kind="primary"] {
    background: $accent; color: $on_accent; border-color: $accent; font-weight: 600;
}
QPushButton[kind="primary"]:focus { border: 2px solid $text; }
QPushButton[kind="primary"]:disabled {
    background: $window; color: $muted; border-color: $line; font-weight: 400;
}
QPushButton[kind="quiet"] { background: transparent; border-color: transparent; color: $muted; }
QPushButton[kind="quiet"]:hover { color: $text; border-color: $line; }
QPushButton[kind="quiet"]:focus { border: 2px solid $accent; color: $text; }
QPushButton[kind="link"] {
    background: transparent; border: 2px solid transparent; color: $muted; padding: 0 6px 0 0;
    min-height: 28px; text-align: left;
}
QPushButton[kind="link"]:hover { color: $accent; }
QPushButton[kind="link"]:focus { border: 2px solid $accent; color: $text; padding: 0 4px 0 2px; }
QPushButton[kind="link"]:disabled { color: $muted; font-style: italic; }
QPushButton[kind="suggestion"] {
    text-align: left; border-radius: 10px; padding: 0 16px; min-height: 42px; font-size: 13px;
}
QPushButton[kind="suggestion"]:focus { padding: 0 15px; min-height: 40px; }
QPushButton[kind="tab"] {
    background: transparent; border: 2px solid transparent; color: $muted; padding: 0 12px;
    min-height: 28px;
}
QPushButton[kind="tab"]:hover { color: $text; }
QPushButton[kind="tab"]:checked {
    background: $surface; border: 1px solid $line; color: $accent; padding: 0 13px;
    min-height: 30px;
}
QPushButton[kind="tab"]:focus { border: 2px solid $accent; padding: 0 12px; min-height: 28px; }

QPushButton[kind="tab"][step="true"] { text-align: left; padding: 0 12px; }
QPushButton[kind="icon"] {
    background: transparent; border: 2px solid transparent; padding: 0; min-height: 28px;
    min-width: 28px;
}
QPushButton[kind="icon"]:hover { background: $surface; border-color: $line; }
QPushButton[kind="icon"]:focus { border-color: $accent; }
QPushButton::menu-indicator { width: 0; image: none; }
QTreeWidget {
    background: $surface; border: 2px solid transparent; border-radius: 6px;
    selection-background-color: $window; selection-color: $accent;
}
QTreeWidget:focus { border-color: $accent; }
QTreeWidget::item { min-height: 26px; border-radius: 4px; color: $text; }
QTreeWidget::item:selected { background: $window; color: $accent; border: 1px solid $line; }
#textTwin {
    background: $window; border: 2px solid transparent; padding: 8px 10px;
    font-family: "JetBrains Mono";
    selection-background-color: $accent; selection-color: $on_accent;
}
#textTwin:focus { border-color: $accent; }
#peek { background: $window; border-left: 1px solid $line; }
#transport { border-top: 1px solid $line; background: $window; }
QSplitter::handle:vertical { background: transparent; }
QSplitter::handle:hover { background: $line; }

QPushButton[kind="tab"][dense="true"] { padding: 0 7px; }
QPushButton[kind="tab"][dense="true"]:checked { padding: 0 8px; }
QPushButton[kind="tab"][dense="true"]:focus { padding: 0 7px; }

#rail { background: $surface; border-right: 1px solid $line; }
#rail QToolButton {
    background: transparent; color: $muted; border: 2px solid transparent; border-radius: 6px;
    font-size: 11px; padding: 4px 0; min-width: 52px; max-width: 52px; min-height: 44px;
}
#rail QToolButton:hover { color: $text; background: $window; }
#rail QToolButton:checked { color: $accent; background: $window; font-weight: 600; }
#rail QToolButton:focus { border-color: $accent; }

#sidebar { background: $window; border-right: 1px solid $line; }
#sidebar QListView { background: transparent; border: 2px solid transparent; border-radius: 6px; }
#sidebar QListView:focus { border-color: $accent; }
#sidebar QListView::item {
    min-height: 32px; padding: 0 8px; border-radius: 6px; color: $text;
}
#sidebar QListView::item:hover { background: $surface; }
#sidebar QListView::item:selected { background: $surface; color: $accent; border: 1px solid $line; }

QLabel[tone="muted"] { color: $muted; }
QLabel[tone="lead"] { color: $muted; font-size: 15px; }
QLabel[tone="small"] { color: $muted; font-size: 11px; }
QLabel[tone="heading"] { font-size: 20px; font-weight: 600; }
QLabel[tone="display"] { font-size: 28px; font-weight: 600; }
QLabel[tone="strong"] { font-weight: 600; }
QLabel[tone="bad"] { color: $bad; font-weight: 600; }
QLabel[tone="wrong"] { color: $bad; }
QLabel[tone="warn"] { color: $warn; }
QLabel[tone="ok"] { color: $ok; }
QLabel[badge] {
    font-size: 11px; border: 1px solid $line; border-radius: 6px; padding: 2px 8px; color: $muted;
}
QLabel[badge="ok"] { color: $ok; border-color: $ok; }
QLabel[badge="warn"] { color: $warn; border-color: $warn; }
QLabel[badge="bad"] { color: $bad; border-color: $bad; }
QLabel[badge="accent"] { color: $accent; border-color: $accent; }
QLabel[tone="report"] { font-family: "JetBrains Mono"; font-size: 11px; color: $text; }
QLabel[tone="figures"] { font-family: "JetBrains Mono"; font-size: 11px; color: $muted; }
QLabel[tone="number"] { font-family: "JetBrains Mono"; font-size: 11px; color: $text; }

QFrame[card="true"] { background: $surface; border: 1px solid $line; border-radius: 10px; }
QFrame[card="bad"] {
    background: $surface; border: 1px solid $bad; border-radius: 10px;
}
QFrame[card="drop"] { background: $surface; border: 2px dashed $accent; border-radius: 10px; }
QFrame[card="true"] QScrollArea, QFrame[card="true"] QScrollArea > QWidget > QWidget {
    background: $surface; border: none;
}
#rule { background: $line; border: none; max-height: 1px; min-height: 1px; }
#banner { background: $surface; border: none; border-bottom: 1px solid $line; }

#composer { background: $surface; border: 1px solid $line; border-radius: 10px; }
#composer[focused="pointer"] { border-color: $muted; }
#composer[focused="keyboard"] { border: 2px solid $accent; }
#composer QPlainTextEdit {
    background: transparent; border: none; font-size: 15px; color: $text;
    placeholder-text-color: $muted;
    selection-background-color: $accent; selection-color: $on_accent;
}
QTextBrowser {
    background: transparent; border: 2px solid transparent; border-radius: 6px; color: $text;
    font-size: 15px; selection-background-color: $accent; selection-color: $on_accent;
}
QTextBrowser:focus { border-color: $accent; }
#canvas { background: transparent; }

QScrollArea, QScrollArea > QWidget > QWidget#column { background: $window; border: none; }
QScrollBar:vertical { background: transparent; width: 12px; margin: 0; }
QScrollBar::handle:vertical {
    background: $line; border-radius: 4px; min-height: 32px; margin: 2px;
}
QScrollBar::handle:vertical:hover { background: $masked; }
QScrollBar[idle="true"]::handle:vertical { background: transparent; }
QScrollBar::add-line, QScrollBar::sub-line { height: 0; width: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QScrollBar:horizontal { background: transparent; height: 12px; }
QScrollBar::handle:horizontal {
    background: $line; border-radius: 4px; min-width: 32px; margin: 2px;
}

#statusBar { background: $surface; border-top: 1px solid $line; }
#statusBar QPushButton#modelChip {
    background: transparent; border: 2px solid transparent; padding: 0 8px; min-height: 28px;
    text-align: left; font-size: 11px;
}
#statusBar QPushButton#modelChip:hover { background: $window; }
#statusBar QPushButton#modelChip:focus { border-color: $accent; }
#statusBar QPushButton#modelChip::menu-indicator { width: 0; image: none; }
QProgressBar { background: $line; border: none; border-radius: 2px; max-height: 4px; }
QProgressBar::chunk { background: $accent; border-radius: 2px; }

QMenu { background: $raised; border: 1px solid $line; padding: 4px; }
QMenu::item { padding: 7px 24px 7px 12px; border-radius: 6px; }
QMenu::item:selected { background: $accent; color: $on_accent; }
QMenu::item:disabled { color: $muted; }
QMenu::separator { height: 1px; background: $line; margin: 4px 8px; }

QRadioButton, QCheckBox {
    spacing: 8px; min-height: 28px; border: 2px solid transparent; padding: 0 4px;
}
QRadioButton:focus, QCheckBox:focus { border: 2px solid $accent; border-radius: 6px; }
QRadioButton::indicator, QCheckBox::indicator {
    width: 14px; height: 14px; border: 1px solid $muted; background: $surface;
}
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator { border-radius: 4px; }
QRadioButton::indicator:checked {
    border: 5px solid $accent; width: 6px; height: 6px; background: $on_accent;
}
QCheckBox::indicator:checked { border-color: $accent; background: $accent; }
QLineEdit {
    background: $surface; border: 1px solid $line; border-radius: 6px; padding: 0 10px;
    min-height: 30px; color: $text; placeholder-text-color: $muted;
    selection-background-color: $accent; selection-color: $on_accent;
}
QLineEdit:focus { border: 2px solid $accent; padding: 0 9px; min-height: 28px; }
QSpinBox, QDoubleSpinBox {
    background: $surface; border: 1px solid $line; border-radius: 6px; min-height: 30px;
    font-family: "JetBrains Mono";
    selection-background-color: $accent; selection-color: $on_accent;
}
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { width: 0; height: 0; border: none; }
QSpinBox:focus, QDoubleSpinBox:focus { border: 2px solid $accent; min-height: 28px; }
""")


def style_sheet(colors: Colors) -> str:
    """Qt style sheet text for one colour scheme."""
    return _SHEET.substitute(vars(colors))
