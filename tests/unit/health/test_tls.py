"""The endpoints over real TLS: who may connect, who may read what, and certificates that are replaced."""

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice.health.tls import TlsFiles
from tests.support.answers import serving
from tests.support.authority import Authority

PROBES = ("/livez", "/readyz", "/startupz")
GUARDED = ("/", "/metrics", "/status", "/history", "/elsewhere")


@dataclass
class Secured:
    """Endpoints with the files of `files`, and who issued what."""

    address: str
    files: TlsFiles
    servers: Authority
    clients: Authority
    folder: Path

    def get(
        self, path: str, *, certificate: tuple[Path, Path] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        return self.servers.get(self.address, path, certificate=certificate, headers=headers)


def replaced(path: str, by: Path) -> None:
    """As a kubelet replaces a mounted file: at once."""
    other = Path(f"{path}.new")
    other.write_bytes(by.read_bytes())
    other.rename(path)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    servers, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    cert, key = servers.pair("endpoint")
    ca = tmp_path / "trusted.pem"
    ca.write_bytes(clients.path.read_bytes())
    files = TlsFiles(str(cert), str(key), str(ca))
    with serving(status=dict, history=lambda _: {}, tls=files) as (address, health):
        health.not_ready("connecting to table public.secret")
        yield Secured(address, files, servers, clients, tmp_path)


def test_only_a_certificate_of_the_authority_reads_more_than_whether_the_probes_pass(secured: Secured) -> None:
    known = secured.clients.pair("prometheus")
    assert [secured.get(path, certificate=known)[0] for path in GUARDED] == [200, 200, 200, 200, 404]
    assert {secured.get(path) for path in GUARDED} == {(403, "a client certificate is needed\n")}
    assert [secured.get(path) for path in PROBES] == [(200, "ok\n"), (503, "not ok\n"), (503, "not ok\n")]


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_a_certificate_of_another_authority_does_not_get_past_the_handshake(secured: Secured, path: str) -> None:
    stranger = Authority(secured.folder, "strangers").pair("stranger")
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        secured.get(path, certificate=stranger)


def test_a_client_that_speaks_plain_http_or_an_old_tls_gets_no_answer(secured: Secured) -> None:
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://{secured.address}/livez", timeout=10)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    host, _, port = secured.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(plain)
    assert secured.get("/livez")[0] == 200


def test_who_is_slow_to_shake_hands_keeps_nobody_else_waiting(secured: Secured) -> None:
    host, _, port = secured.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10):
        assert secured.get("/livez")[0] == 200


def test_a_certificate_that_was_replaced_is_shown_to_the_next_client(secured: Secured) -> None:
    other = Authority(secured.folder, "others")
    cert, key = other.pair("renewed")
    replaced(secured.files.cert, cert)
    # Half of the pair: what was in force stays.
    assert secured.get("/livez")[0] == 200
    replaced(secured.files.key, key)
    with pytest.raises(ssl.SSLCertVerificationError):
        secured.get("/livez")
    secured.servers = other
    assert secured.get("/livez")[0] == 200


def test_an_authority_that_was_replaced_is_the_only_one_and_a_missing_file_opens_nothing(secured: Secured) -> None:
    before, others = secured.clients.pair("before"), Authority(secured.folder, "others")
    after = others.pair("after")
    assert secured.get("/metrics", certificate=before)[0] == 200
    replaced(secured.files.client_ca, others.path)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        secured.get("/metrics", certificate=before)
    assert secured.get("/metrics", certificate=after)[0] == 200
    Path(secured.files.client_ca).unlink()
    assert secured.get("/metrics")[0] == 403
    assert secured.get("/metrics", certificate=after)[0] == 200


def test_with_a_token_as_well_both_are_needed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "one")
    cert, key = authority.pair("endpoint")
    token = tmp_path / "token"
    token.write_text("let-me-in")
    files = TlsFiles(str(cert), str(key), str(authority.path))
    with serving(status=dict, token_file=str(token), tls=files) as (address, _):
        secured = Secured(address, files, authority, authority, tmp_path)
        known, bearer = authority.pair("prometheus"), {"Authorization": "Bearer let-me-in"}
        assert secured.get("/metrics", headers=bearer)[0] == 403
        assert secured.get("/metrics", certificate=known)[0] == 401
        assert secured.get("/metrics", certificate=known, headers=bearer)[0] == 200


@pytest.mark.parametrize("wrong", ["missing", "another key", "password", "no certificate", "no authority"])
def test_files_that_cannot_be_used_stop_the_start_by_name_without_their_content(tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path, "one")
    cert, key = authority.pair("endpoint", password="canary-77" if wrong == "password" else "")
    ca = authority.path
    if wrong == "missing":
        key.unlink()
    elif wrong == "another key":
        key = authority.pair("other")[1]
    elif wrong == "no certificate":
        cert.write_text("canary-77")
    elif wrong == "no authority":
        ca.write_text("canary-77")
    with pytest.raises(UsageError) as caught, serving(tls=TlsFiles(str(cert), str(key), str(ca))):
        pass
    assert "telemetry.tls_cert_path" in caught.value.hint
    assert "canary" not in str(caught.value)
