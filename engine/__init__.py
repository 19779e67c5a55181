"""The Unblur engine: loading, maths, decoding and running of diffusion language models.

Knows nothing of windows, training or the network. Importing this package imports neither torch nor
Qt: the seam (`engine.types`, `engine.errors`, `engine.protocol`) must be usable where torch is not
installed.
"""
