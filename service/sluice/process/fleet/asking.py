"""Questions to the processes of a fleet, over sockets that only this user can reach.

Invariant: bounded in time and bytes; a process that is silent, or gone, is an answer that is missing and
never an error.
"""

import http.client
import json
import socket
from typing import Any

from sluice.health.endpoint import Answer

PATIENCE_SECONDS = 10.0
_MOST_BYTES = 64 * 1024 * 1024
_PASSED_ON = ("Content-Security-Policy", "Referrer-Policy", "X-Content-Type-Options")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(socket_path: str, target: str, *, seconds: float = PATIENCE_SECONDS) -> Answer | None:
    """What the process at the socket answers to GET `target`; None when it does not."""
    connection = _UnixConnection(socket_path, timeout=seconds)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        content = answer.read(_MOST_BYTES)
        headers = {name: value for name in _PASSED_ON if (value := answer.headers[name]) is not None}
        return Answer(answer.status, content, answer.headers["Content-Type"] or "text/plain", headers)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def ask_json(socket_path: str, target: str) -> dict[str, Any] | None:
    """As `ask`, for a document, whatever the code of the answer."""
    answer = ask(socket_path, target)
    try:
        found = json.loads(answer.content) if answer is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
