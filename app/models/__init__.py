"""Observable state: lifecycles with their moves, snapshots and conversations. No widgets."""
