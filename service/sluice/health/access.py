"""Who may read what the endpoints say: anybody, or who knows a token, has a certificate, or both.

Where nothing is asked for, the address of this machine alone is the guard, and a browser on it asks for any web page:
the author of the page lets its name lead to 127.0.0.1, and reads the answer (DNS rebinding). Such a request names the
page's host and our port.

Invariants: the token is read from its file for each request, so that it can be rotated without a
restart; a file that is missing or empty lets nobody in; it is compared in constant time and appears
in no answer. Probes are asked for neither: a kubelet has none. (RFC 6750, RFC 7617.)
"""

import base64
import hmac
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

CHALLENGE = 'Bearer realm="sluice", Basic realm="sluice"'
"""A browser asks for a password, which is the token; the name does not matter."""


class Access:
    """`token_file` is empty where no token is needed; `certificates` is whether clients need one."""

    def __init__(self, token_file: str = "", *, certificates: bool = False) -> None:
        self._token_file = token_file
        self.certificates = certificates
        self.own: tuple[str, int] | None = None
        """Host and port that are listened on, None where no page of somebody else can get at what is said."""

    @property
    def guarded(self) -> bool:
        return bool(self._token_file) or self.certificates

    def is_rebound(self, host: str | None) -> bool:
        """Whether a request with this Host may be of a page that somebody led here. What another port was asked for,
        a proxy passes on: the browser of such a page would name ours.
        """
        if self.guarded or self.own is None or host is None:
            return False
        own, port = self.own
        try:
            asked = urlsplit(f"//{host}")
            name = (asked.hostname or "").removesuffix(".")
            return (asked.port or 80) == port and name not in ("localhost", own.lower()) and not _is_address(name)
        except ValueError:
            return True

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


def is_loopback(address: str) -> bool:
    """Whether only this machine gets there. `address` is that of a socket."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
