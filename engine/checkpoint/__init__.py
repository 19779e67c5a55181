"""Model folders: opened, validated, read. `open_checkpoint` is the way in.

The names arrive when they are asked for: whoever only parses a header, to judge a model before it
is downloaded, does not wait for torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.checkpoint.checkpoint import Checkpoint, ExpertStack, open_checkpoint

__all__ = ["Checkpoint", "ExpertStack", "open_checkpoint"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from engine.checkpoint import checkpoint

    return getattr(checkpoint, name)
