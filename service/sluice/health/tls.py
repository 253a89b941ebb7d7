"""TLS of the endpoints: a certificate from files, and clients that prove who they are by theirs.

Invariants: files that changed are in force with the next connection, without a restart; files that
cannot be used, such as a pair of which half is replaced, leave in force what was, and say so. A client
whose certificate is not of our authority never gets past the handshake. One without any gets past it,
because a kubelet has none: `Access` decides that it may read the probes alone. Keys and the text of
certificates reach no log. (RFC 8446; RFC 5280.)
"""

import socket
import ssl
import threading
from dataclasses import dataclass

import structlog

from sluice.errors import UsageError
from sluice.reloading import signature


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate chain and key are, and the authorities of clients (PEM). Empty `cert`: no TLS.
    Empty `client_ca`: clients need no certificate.
    """

    cert: str = ""
    key: str = ""
    client_ca: str = ""


class EndpointTls:
    """May be used from any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises UsageError when the files cannot be used."""
        self._files = files
        self._lock = threading.Lock()
        self._seen = self._signature()
        try:
            self._context = _context(files)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the certificate of the endpoints cannot be used: {_reason(error)}",
                hint="telemetry.tls_cert_path, tls_key_path and tls_client_ca_path name PEM files; the key has no "
                "password",
            ) from None

    def secured(self, connection: socket.socket) -> ssl.SSLSocket:
        """`connection` by the files as they are now. The handshake is the caller's, who bounds it."""
        return self._newest().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _signature(self) -> tuple[int, ...]:
        return signature(self._files.cert, self._files.key, self._files.client_ca)

    def _newest(self) -> ssl.SSLContext:
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                logger = structlog.get_logger("endpoint")
                try:
                    # A new one: tickets of the old one would let clients of an old authority go on.
                    self._context = _context(self._files)
                except (OSError, ValueError) as error:
                    logger.warning("the new certificate of the endpoints is not used", reason=_reason(error))
                else:
                    logger.info("the new certificate of the endpoints is in force")
            return self._context


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Nobody is there to be asked for a password.
    context.load_cert_chain(files.cert, files.key, password=lambda: "")
    if files.client_ca:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _reason(error: Exception) -> str:
    """Without the names of files, which the settings have, and without what they hold."""
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
