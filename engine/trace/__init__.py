"""The recorded steps of a reply, and the `.dntrace` file they are kept in.

Knows arrays, a header and a file. Refuses to know torch, Qt and any model: a trace can be looked
at anywhere.
"""

from engine.trace.errors import TraceError
from engine.trace.file import EXTENSION, open_trace, save_trace
from engine.trace.header import FORMAT_VERSION, Change, TraceHeader, TraceParent
from engine.trace.recorder import TraceRecorder
from engine.trace.trace import KeptLogits, Trace

__all__ = [
    "EXTENSION",
    "FORMAT_VERSION",
    "Change",
    "KeptLogits",
    "Trace",
    "TraceError",
    "TraceHeader",
    "TraceParent",
    "TraceRecorder",
    "open_trace",
    "save_trace",
]
