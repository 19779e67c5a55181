"""What the hub has and whether it would run here: catalogue, search, access, fit. No transfers."""
