"""Who may read what the endpoints say: anybody, or who knows a token, has a certificate, or both.

Invariants: the token is read from its file for each request, so that it can be rotated without a
restart; a file that is missing or empty lets nobody in; it is compared in constant time and appears
in no answer. Probes are asked for neither: a kubelet has none. (RFC 6750, RFC 7617.)
"""

import base64
import hmac
from pathlib import Path

CHALLENGE = 'Bearer realm="sluice", Basic realm="sluice"'
"""A browser asks for a password, which is the token; the name does not matter."""


class Access:
    """`token_file` is empty where no token is needed; `certificates` is whether clients need one."""

    def __init__(self, token_file: str = "", *, certificates: bool = False) -> None:
        self._token_file = token_file
        self.certificates = certificates

    @property
    def guarded(self) -> bool:
        return bool(self._token_file) or self.certificates

    def allows(self, authorization: str | None) -> bool:
        """Whether a request with this header has the token. May be called from any thread."""
        if not self._token_file:
            return True
        try:
            token = Path(self._token_file).read_bytes().strip()
        except OSError:
            return False
        given = _given(authorization or "")
        return bool(token) and hmac.compare_digest(given, token)


def _given(authorization: str) -> bytes:
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""
