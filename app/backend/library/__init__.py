"""The models on this computer's disks: found, checked, deleted and brought back. No network."""
