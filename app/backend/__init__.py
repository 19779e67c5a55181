"""What the window stands on: files, settings, logs and samples of the machine. No widgets, no
maths.
"""
