"""TLS in front of a PostgreSQL server that was built without it: answers SSLRequest, decrypts, and
forwards in plain.

Records to the client are kept small, as a walsender's are: one read of libpq's gives one of them.
"""

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_RECORD_BYTES = 512
_SSL_REQUEST = bytes.fromhex("0000000804d2162f")

CutAt = Literal["request", "agreed", "hello", "middle", "done", "startup"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a connection ends while it is being secured: after the client asked for TLS, after we
    agreed, after its hello, within our answer to it, when the handshake is done, after the
    startup packet. By a reset, or by an orderly end.
    """

    at: CutAt
    reset: bool


def make_certificate(directory: Path, *, address: str = "127.0.0.1", valid_hours: int = 1) -> tuple[Path, Path]:
    """A self-signed certificate for `address` and its key; with negative hours one that has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sluice-test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=48))
        .not_valid_after(now + dt.timedelta(hours=valid_hours))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    certificate_path, key_path = directory / "server.crt", directory / "server.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    unencrypted = serialization.NoEncryption()
    key_path.touch(mode=0o600)  # libpq refuses one that others can read
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted))
    return certificate_path, key_path


@contextlib.contextmanager
def tls_front(
    target_port: int, certificate: Path, key: Path, *, cuts: list[Cut] | None = None, clients: Path | None = None
) -> Iterator[int]:
    """The port of a TLS listener on 127.0.0.1 that forwards to `target_port`. Each of `cuts` is
    taken from the list by one connection, which ends there. With `clients`, a client must have a
    certificate from an authority in that file, as it is when the client connects.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.num_tickets = 0

    def context_for_a_client() -> ssl.SSLContext:
        if clients is None:
            return context
        asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        asking.load_cert_chain(certificate, key)
        asking.num_tickets = 0
        asking.verify_mode = ssl.CERT_REQUIRED
        asking.load_verify_locations(clients)
        return asking

    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        threads.append(thread)
        thread.start()

    def serve(bare: socket.socket) -> None:
        with contextlib.suppress(OSError):
            asked = bare.recv(8, socket.MSG_WAITALL) == _SSL_REQUEST
            if cuts and asked:
                _cut(bare, context, cuts.pop(0))
                return
            if not asked:
                bare.close()
                return
            bare.sendall(b"S")
            client = context_for_a_client().wrap_socket(bare, server_side=True)
            server = socket.create_connection(("127.0.0.1", target_port))
            sockets.extend((client, server))
            start(_forward, client, server, 1 << 16)
            _forward(server, client, _RECORD_BYTES)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                bare, _ = listener.accept()
                sockets.append(bare)
                start(serve, bare)

    start(accept)
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in threads:
            thread.join(10)
        for one in sockets:
            # One that was opened for a client that had gone already came after the first round.
            one.close()


def _forward(source: socket.socket, sink: socket.socket, most: int) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(most):
            sink.sendall(block)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _cut(bare: socket.socket, context: ssl.SSLContext, cut: Cut) -> None:
    """Goes as far as `cut` says, and ends the connection."""
    if cut.at != "request":
        bare.sendall(b"S")
    if cut.at not in ("request", "agreed"):
        _shake_hands(bare, context, cut.at)
    if cut.reset:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    bare.close()


def _shake_hands(bare: socket.socket, context: ssl.SSLContext, until: CutAt) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secured = context.wrap_bio(incoming, outgoing, server_side=True)

    def step(action: Literal["do_handshake", "read"]) -> None:
        while True:
            try:
                getattr(secured, action)()
                bare.sendall(outgoing.read())
                return
            except ssl.SSLWantReadError:
                answer = outgoing.read()
                bare.sendall(answer[: len(answer) // 2] if until == "middle" else answer)
                if answer and until == "middle":
                    return
                incoming.write(bare.recv(1 << 16))
                if until == "hello":
                    return

    step("do_handshake")
    if until == "startup":
        step("read")
