"""`python -m engine bench`: how fast a step is on this machine, at the shape of a published model
and with random weights, so that nothing has to be downloaded."""
