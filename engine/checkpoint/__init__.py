"""Model folders: opened, validated, read. `open_checkpoint` is the way in."""

from engine.checkpoint.checkpoint import Checkpoint, ExpertStack, open_checkpoint

__all__ = ["Checkpoint", "ExpertStack", "open_checkpoint"]
