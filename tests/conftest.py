"""Fixtures shared by all tests: where the conformance data lies."""

from __future__ import annotations

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """The conformance fixtures laid beside the checkout; absent means an incomplete checkout."""
    folder = REPO.parent / "shared" / "fixtures"
    assert folder.is_dir(), f"conformance fixtures are missing: expected {folder}"
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return REPO
