"""Where the access token is kept: the system's keyring where there is one, else a file that only
its owner can read.

It knows one token for each hub, so that no other site is ever sent it. It refuses to log, print or
put it into an error. A keyring may ask its owner to unlock it: not for the GUI's thread.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from app.backend.files import read_json_object
from app.backend.hub.access import ENDPOINT, HubError

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

log = logging.getLogger("unblur.hub")
SERVICE = "Unblur"
_FORM = re.compile(r"[!-~]{8,400}")  # what can be one, and can be a header
_USABLE = 1  # keyring's own: below this a backend is none, or keeps passwords readable
Kept = Literal["", "keyring", "file", "environment", "hugging face login"]


class KeyringFailed(Exception):
    """A keyring is there and did not do what it was asked."""


class Keyring(Protocol):
    """A place that keeps secrets. Every method may raise KeyringFailed."""

    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class TokenStore:
    """The token of one hub. `where` says in which place the token was found; `problem` is None, or
    a sentence on why it is not in the keyring although there is one. Safe for several threads."""

    def __init__(
        self,
        file: Path,
        endpoint: str = ENDPOINT,
        keyring: Callable[[], Keyring | None] | None = None,
    ) -> None:
        """keyring: gives the keyring to use, asked once; the system's unless a test brings one."""
        self.problem: str | None = None
        self.where: Kept = ""
        self._file = file
        self._endpoint = endpoint
        self._user = urlsplit(endpoint).netloc
        self._open_keyring = functools.cache(keyring or system_keyring)
        self._lock = threading.Lock()
        self._token: str | None = None
        self._looked = False

    def __repr__(self) -> str:
        return f"TokenStore({self.where or 'none'})"

    def get(self) -> str | None:
        """The token, or None. The first call looks into the keyring and may take a while."""
        with self._lock:
            if not self._looked:
                self._token, self.where = self._find()
                self._looked = True
            return self._token

    def get_for(self, endpoint: str) -> str | None:
        """The token where it was kept for this very hub, else None: a folder from elsewhere may
        name any site as its origin."""
        return self.get() if endpoint.rstrip("/") == self._endpoint else None

    def save(self, token: str) -> None:
        """Keeps a token that a person entered. Raises HubError for what cannot be one, or when no
        place takes it."""
        token = token.strip()
        if not _FORM.fullmatch(token):
            raise HubError(
                "hub.token_form",
                "This is not an access token: it has spaces or other characters a token never has.",
                f"Copy the whole token (it begins with hf_) from {self._endpoint}/settings/tokens.",
                f"{self._endpoint}/settings/tokens",
            )
        with self._lock:
            self.where = self._keep(token)
            self._token, self._looked = token, True

    def forget(self) -> None:
        """Removes what `save` kept. A token of the environment or of a login elsewhere stays.
        Raises HubError where that is not certain."""
        with self._lock:
            self._forget_file()
            self._looked = False
            backend = self._open_keyring()
            if backend is not None and not _forgotten(backend, self._user):
                raise HubError(
                    "hub.token_not_forgotten",
                    "The system's keyring did not let the token go; it may still be there.",
                    f"Unlock the keyring and try again, or delete the entry {SERVICE!r} in it.",
                )

    def _find(self) -> tuple[str | None, Kept]:
        """The first one that can be a token: what cannot be sent is said and passed over."""
        for token, where in self._places():
            if _FORM.fullmatch(token):
                return token, where
            self.problem = (
                f"What is kept as a token ({where}) has spaces or characters that a token never has"
                " and is not used."
            )
        return None, ""

    def _places(self) -> Iterator[tuple[str, Kept]]:
        if token := self._read_file().get(self._user):
            yield token, "file"  # newer than the keyring's: it is here because that one refused it
        backend = self._open_keyring()
        if backend is not None:
            try:
                token = backend.get_password(SERVICE, self._user)
            except KeyringFailed as error:
                self._keyring_failed(error)
            else:
                if token:
                    yield token, "keyring"
        if self._endpoint != ENDPOINT:
            return  # the login on this computer is for huggingface.co alone
        if token := os.environ.get("HF_TOKEN", "").strip():
            yield token, "environment"
        from huggingface_hub import get_token

        if token := get_token():
            yield token, "hugging face login"

    def _keep(self, token: str) -> Kept:
        backend = self._open_keyring()
        self.problem = None
        if backend is not None:
            try:
                backend.set_password(SERVICE, self._user, token)
            except KeyringFailed as error:
                self._keyring_failed(error)
            else:
                self._forget_file()  # an older one, from when the keyring did not answer
                return "keyring"
        self._write_file({**self._read_file(), self._user: token})
        return "file"

    def _forget_file(self) -> None:
        kept = self._read_file()
        if kept.pop(self._user, None) is not None:
            self._write_file(kept)

    def _keyring_failed(self, error: KeyringFailed) -> None:
        log.warning("the keyring did not answer: %s", error)
        self.problem = (
            f"The system's keyring did not answer ({error}), so the token is kept in"
            f" {self._file}, which only you can read."
        )

    def _read_file(self) -> dict[str, str]:
        try:
            value = read_json_object(self._file)
        except (OSError, ValueError):
            return {}
        return {k: v for k, v in value.items() if isinstance(v, str)}

    def _write_file(self, tokens: dict[str, str]) -> None:
        """Its permissions are there before its content is."""
        new = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(tokens, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(new, self._file)
        except OSError as error:
            raise HubError(
                "hub.token_not_kept",
                f"The token cannot be kept in {self._file.parent} ({error.strerror}).",
                "Check that the folder can be written.",
            ) from None


class SystemKeyring:
    """The package's backend behind one kind of failure. Backends raise whatever their system
    raises, and that text may hold anything: only its kind is passed on."""

    def __init__(self, backend: KeyringBackend) -> None:
        self._backend = backend

    def get_password(self, service: str, username: str) -> str | None:
        with _failures():
            return self._backend.get_password(service, username)

    def set_password(self, service: str, username: str, password: str) -> None:
        with _failures():
            self._backend.set_password(service, username, password)

    def delete_password(self, service: str, username: str) -> None:
        with _failures():
            self._backend.delete_password(service, username)


def _forgotten(backend: Keyring, user: str) -> bool:
    """Removes the token from the keyring; whether none is there now. A keyring that has none fails
    in its own way, so it is asked once more."""
    try:
        backend.delete_password(SERVICE, user)
    except KeyringFailed:
        try:
            return backend.get_password(SERVICE, user) is None
        except KeyringFailed:
            return False
    return True


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see SystemKeyring
        raise KeyringFailed(type(error).__name__) from None


def system_keyring() -> Keyring | None:
    """The system's keyring, or None where there is none that keeps secrets secret."""
    import keyring

    try:
        with _failures():
            backend = keyring.get_keyring()
            usable = float(backend.priority) >= _USABLE
    except KeyringFailed as error:
        log.info("no keyring: %s", error)
        return None
    return SystemKeyring(backend) if usable else None
