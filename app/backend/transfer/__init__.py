"""Bytes from the hub onto a disk: resumable, verified, published whole or not at all. No models."""
