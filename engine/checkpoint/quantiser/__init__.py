"""Writes an NVFP4 copy of a checkpoint. `quantise` is the way in."""

from engine.checkpoint.quantiser.choice import Choice
from engine.checkpoint.quantiser.options import QuantiseOptions
from engine.checkpoint.quantiser.report import QuantiseReport
from engine.checkpoint.quantiser.run import quantise

__all__ = ["Choice", "QuantiseOptions", "QuantiseReport", "quantise"]
