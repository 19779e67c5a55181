"""The recorded steps of a reply, and the `.dntrace` file they are kept in.

Knows arrays, a header and a file. Refuses to know torch, Qt and any model: a trace can be looked
at anywhere.
"""

from engine.trace.errors import TraceError
from engine.trace.file import EXTENSION, open_trace, save_trace
from engine.trace.fork import EVERYWHERE, Fork
from engine.trace.header import FORMAT_VERSION, Change, TraceHeader, TraceParent
from engine.trace.recorder import TraceRecorder
from engine.trace.recording import TracedEngine, record, record_fork
from engine.trace.trace import KeptLogits, Trace

__all__ = [
    "EVERYWHERE",
    "EXTENSION",
    "FORMAT_VERSION",
    "Change",
    "Fork",
    "KeptLogits",
    "Trace",
    "TraceError",
    "TraceHeader",
    "TraceParent",
    "TraceRecorder",
    "TracedEngine",
    "open_trace",
    "record",
    "record_fork",
    "save_trace",
]
