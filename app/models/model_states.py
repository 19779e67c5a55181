"""The states of the Models page's parts, and the only moves between them.

It knows names and tables. It refuses to know what makes a move happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Opening(Enum):
    """The files behind the page: folder list, download queue, token."""

    CLOSED = "Closed"
    OPENING = "Opening"
    OPEN = "Open"
    FAILED = "Failed"
    ENDED = "Ended"


class Scanning(Enum):
    """What is known of the folders."""

    NEW = "Not looked at"
    SCANNING = "Looking"
    SHOWN = "Known"


class Checking(Enum):
    """One model's files against their hashes."""

    UNCHECKED = "Not checked"
    CHECKING = "Checking"
    STOPPING = "Stopping"
    CHECKED = "Checked"
    FAILED = "Failed"


class Finding(Enum):
    """What the list under the search field holds."""

    CURATED = "Curated list"
    SEARCHING = "Searching"
    FOUND = "Found"
    FAILED = "Failed"


class Looking(Enum):
    """One model of the hub, looked at from afar."""

    UNSEEN = "Not looked at"
    LOOKING = "Looking"
    KNOWN = "Known"
    FAILED = "Failed"


class Copying(Enum):
    """An NVFP4 copy being made."""

    IDLE = "Idle"
    COPYING = "Copying"
    STOPPING = "Stopping"
    DONE = "Done"
    FAILED = "Failed"


class Keeping(Enum):
    """The access token."""

    UNKNOWN = "Unknown"
    ASKING = "Asking"
    NONE = "None"
    KEPT = "Kept"
    REFUSED = "Refused"


_O, _S, _C, _F = Opening, Scanning, Checking, Finding
OPENING: Mapping[Opening, frozenset[Opening]] = {
    _O.CLOSED: frozenset({_O.OPENING, _O.ENDED}),
    _O.OPENING: frozenset({_O.OPEN, _O.FAILED, _O.ENDED}),
    _O.OPEN: frozenset({_O.ENDED}),
    _O.FAILED: frozenset({_O.OPENING, _O.ENDED}),
    _O.ENDED: frozenset(),
}
SCANNING: Mapping[Scanning, frozenset[Scanning]] = {
    _S.NEW: frozenset({_S.SCANNING}),
    _S.SCANNING: frozenset({_S.SHOWN}),
    _S.SHOWN: frozenset({_S.SCANNING}),
}
CHECKING: Mapping[Checking, frozenset[Checking]] = {
    _C.UNCHECKED: frozenset({_C.CHECKING}),
    _C.CHECKING: frozenset({_C.STOPPING, _C.CHECKED, _C.FAILED}),
    # the last file may be read just before the stop is heard
    _C.STOPPING: frozenset({_C.UNCHECKED, _C.CHECKED, _C.FAILED}),
    _C.CHECKED: frozenset({_C.CHECKING}),
    _C.FAILED: frozenset({_C.CHECKING}),
}
FINDING: Mapping[Finding, frozenset[Finding]] = {
    # a link that leads elsewhere fails without a search
    _F.CURATED: frozenset({_F.SEARCHING, _F.FOUND, _F.FAILED}),
    # another search takes the place of one that still runs
    _F.SEARCHING: frozenset({_F.SEARCHING, _F.FOUND, _F.FAILED, _F.CURATED}),
    _F.FOUND: frozenset({_F.SEARCHING, _F.FOUND, _F.FAILED, _F.CURATED}),
    _F.FAILED: frozenset({_F.SEARCHING, _F.FOUND, _F.FAILED, _F.CURATED}),
}
_L, _Q, _K = Looking, Copying, Keeping
LOOKING: Mapping[Looking, frozenset[Looking]] = {
    _L.UNSEEN: frozenset({_L.LOOKING}),
    _L.LOOKING: frozenset({_L.KNOWN, _L.FAILED, _L.UNSEEN}),  # UNSEEN: it was called off
    _L.KNOWN: frozenset({_L.LOOKING}),
    _L.FAILED: frozenset({_L.LOOKING}),
}
COPYING: Mapping[Copying, frozenset[Copying]] = {
    _Q.IDLE: frozenset({_Q.COPYING}),
    _Q.COPYING: frozenset({_Q.STOPPING, _Q.DONE, _Q.FAILED}),
    _Q.STOPPING: frozenset({_Q.IDLE, _Q.DONE, _Q.FAILED}),
    _Q.DONE: frozenset({_Q.IDLE, _Q.COPYING}),
    _Q.FAILED: frozenset({_Q.IDLE, _Q.COPYING}),
}
KEEPING: Mapping[Keeping, frozenset[Keeping]] = {
    _K.UNKNOWN: frozenset({_K.ASKING}),
    _K.ASKING: frozenset({_K.NONE, _K.KEPT, _K.REFUSED}),
    _K.NONE: frozenset({_K.ASKING}),
    _K.KEPT: frozenset({_K.ASKING}),
    _K.REFUSED: frozenset({_K.ASKING}),
}
