"""A hub on this computer, for tests: the real HTTP API over repositories made up by the test.

It knows nothing of Unblur. `HubServer` is the server, `Repository` what it serves, `Trouble` what
goes wrong with an answer.
"""

from hub_server.repositories import Blob, Repository
from hub_server.server import HubServer, Request, Trouble, wait_until

__all__ = ["Blob", "HubServer", "Repository", "Request", "Trouble", "wait_until"]
