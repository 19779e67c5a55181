"""The access token: in the keyring, else in a file of one's own; never anywhere else."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from transfers import TOKEN

from app.backend.hub.access import HubError
from app.backend.hub.token import KeyringFailed, TokenStore, system_keyring

MIRROR = "https://mirror.test"


class Ring:
    """A keyring in memory; `broken`: it fails as a locked one does."""

    def __init__(self, broken: bool = False) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.broken = broken

    def _check(self) -> None:
        if self.broken:
            raise KeyringFailed("KeyringLocked")

    def get_password(self, service: str, username: str) -> str | None:
        self._check()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._check()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._check()
        if (service, username) not in self.kept:
            raise KeyringFailed("PasswordDeleteError")
        del self.kept[service, username]


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)


def test_the_keyring_is_used_where_there_is_one(tmp_path: Path) -> None:
    ring = Ring()
    store = TokenStore(tmp_path / "token.json", keyring=lambda: ring)
    assert store.get() is None
    store.save(f" {TOKEN}\n")
    assert (store.get(), store.where, store.problem) == (TOKEN, "keyring", None)
    assert list(tmp_path.iterdir()) == []
    assert TokenStore(tmp_path / "token.json", keyring=lambda: ring).get() == TOKEN
    store.forget()
    assert store.get() is None
    assert ring.kept == {}


@pytest.mark.parametrize("ring", [None, Ring(broken=True)], ids=["none", "locked"])
def test_else_a_file_that_only_its_owner_reads(tmp_path: Path, ring: Ring | None) -> None:
    path = tmp_path / "folder" / "token.json"
    store = TokenStore(path, keyring=lambda: ring)
    store.save(TOKEN)
    assert (store.get(), store.where) == (TOKEN, "file")
    assert (store.problem is None) == (ring is None)
    assert TOKEN not in (store.problem or "")
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TokenStore(path, keyring=lambda: ring).get() == TOKEN
    if ring is None:
        store.forget()
    else:  # whether that one has it, nobody can tell
        with pytest.raises(HubError) as caught:
            store.forget()
        assert caught.value.code == "hub.token_not_forgotten"
    assert TOKEN not in path.read_text()
    assert store.get() is None


def test_a_keyring_that_answers_again_has_the_only_copy_of_the_newest_token(
    tmp_path: Path,
) -> None:
    ring, path = Ring(), tmp_path / "token.json"
    store = TokenStore(path, keyring=lambda: ring)
    store.save("hf_theOldestOfThree")
    ring.broken = True
    store.save("hf_theSecondOfThree")
    ring.broken = False
    assert TokenStore(path, keyring=lambda: ring).get() == "hf_theSecondOfThree"
    store.save(TOKEN)
    again = TokenStore(path, keyring=lambda: ring)
    assert (again.get(), again.where) == (TOKEN, "keyring")
    assert "hf_" not in path.read_text()


def test_a_token_is_given_for_its_own_hub_alone(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "token.json", MIRROR, keyring=lambda: None)
    store.save(TOKEN)
    assert store.get_for(f"{MIRROR}/") == TOKEN
    assert store.get_for("https://huggingface.co") is None
    assert store.get_for(f"{MIRROR}.elsewhere.org") is None


@pytest.mark.parametrize("odd", ["hf_two\nlines", "hf_\u2026elided", "Bearer hf_oneToken", "hf"])
def test_what_cannot_be_sent_as_a_token_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", odd)
    store = TokenStore(tmp_path / "token.json", keyring=lambda: None)
    assert (store.get(), store.where) == (None, "")
    assert "environment" in (store.problem or "")
    assert odd not in (store.problem or "")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_ofTheLogin")
    store = TokenStore(tmp_path / "token.json", keyring=lambda: None)
    assert (store.get(), store.where) == ("hf_ofTheLogin", "hugging face login")


def test_a_token_is_kept_for_one_hub_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token.json"
    TokenStore(path, keyring=lambda: None).save(TOKEN)
    monkeypatch.setenv("HF_TOKEN", "hf_ofTheEnvironment")
    assert TokenStore(path, MIRROR, keyring=lambda: None).get() is None
    TokenStore(path, MIRROR, keyring=lambda: None).save("hf_ofTheMirror")
    assert TokenStore(path, keyring=lambda: None).get() == TOKEN


def test_the_environment_and_an_existing_login_are_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token.json"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_ofTheLogin")
    store = TokenStore(path, keyring=lambda: None)
    assert (store.get(), store.where) == ("hf_ofTheLogin", "hugging face login")
    monkeypatch.setenv("HF_TOKEN", "hf_ofTheEnvironment")
    store = TokenStore(path, keyring=lambda: None)
    assert (store.get(), store.where) == ("hf_ofTheEnvironment", "environment")
    store.save(TOKEN)
    assert (store.get(), store.where) == (TOKEN, "file")


@pytest.mark.parametrize("text", ["", "short", "two words here", "tökenwithümlaut", "hf_\x07bell1"])
def test_what_cannot_be_a_token_is_refused_without_being_repeated(
    tmp_path: Path, text: str
) -> None:
    store = TokenStore(tmp_path / "token.json", keyring=lambda: None)
    with pytest.raises(HubError) as caught:
        store.save(text)
    assert caught.value.code == "hub.token_form"
    assert not text or text not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_token_is_not_in_any_repr(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "token.json", keyring=lambda: None)
    store.save(TOKEN)
    assert TOKEN not in repr(store)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = TokenStore(tmp_path / "file" / "token.json", keyring=lambda: None)
    with pytest.raises(HubError) as caught:
        store.save(TOKEN)
    assert caught.value.code == "hub.token_not_kept"
    assert TOKEN not in str(caught.value)


def test_a_keyring_that_keeps_nothing_secret_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.backends import fail

    monkeypatch.setattr(keyring, "get_keyring", fail.Keyring)
    assert system_keyring() is None


def test_a_backend_that_raises_anything_becomes_one_kind_of_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import keyring

    class Odd:
        priority = 5

        def get_password(self, service: str, username: str) -> str:
            raise ZeroDivisionError(TOKEN)

    monkeypatch.setattr(keyring, "get_keyring", Odd)
    ring = system_keyring()
    assert ring is not None
    with pytest.raises(KeyringFailed, match="ZeroDivisionError") as caught:
        ring.get_password("a", "b")
    assert TOKEN not in str(caught.value)
