"""What a server's error means to us: who must act, and that no value and no secret is repeated."""

from typing import Any

import psycopg
import pytest

from sluice.errors import Disposition, ServiceError, SlotBusy, SlotLost, SourceRefused, SourceUnavailable, UsageError
from sluice.source.refused_connections import connect_error
from sluice.source.sessions import SlotDoubted, SourceOptions, open_query, source_error

RETRIED = [
    "",
    "08006",
    "08P01",
    "53200",
    "53300",
    "57014",
    "57P01",
    "57P02",
    "57P03",
    "58P01",
    "40001",
    "55P03",
    "72000",
]
FINAL = ["28000", "28P01", "3D000", "42501", "42704", "0A000", "22021", "22P05", "XX000", "53400", "42P01"]


def _error(sqlstate: str, message: str = "m", *, doing: str = "x", **more: Any) -> ServiceError:
    return source_error(sqlstate=sqlstate, message=message, doing=doing, **more)


@pytest.mark.parametrize("sqlstate", [*RETRIED, "25P03"])
def test_what_may_pass_is_tried_again(sqlstate: str) -> None:
    error = _error(sqlstate)
    assert isinstance(error, SourceUnavailable)
    assert error.disposition is Disposition.RETRY


@pytest.mark.parametrize("sqlstate", FINAL)
def test_what_a_person_must_fix_is_not_tried_again(sqlstate: str) -> None:
    error = _error(sqlstate)
    assert isinstance(error, SourceRefused)
    assert error.disposition is Disposition.OPERATOR


def test_a_busy_slot_is_its_own_error() -> None:
    assert isinstance(_error("55006", 'replication slot "s" is active for PID 7'), SlotBusy)


def test_a_missing_slot_is_lost_and_a_missing_publication_is_not() -> None:
    """Both are 42704, and both may have the same name: only the moment tells them apart."""
    of_slot = _error("42704", 'replication slot "s" does not exist', slot="s", phase="start")
    of_publication = _error("42704", 'publication "s" does not exist', slot="s", phase="stream")
    assert (type(of_slot), type(of_publication)) == (SlotLost, SourceRefused)


@pytest.mark.parametrize("phase", ["start", "stream"])
def test_a_slot_that_is_not_in_a_state_to_stream_is_judged_by_its_catalog(phase: str) -> None:
    """An invalidated slot and one that a standby keeps in step have the same code, and any words."""
    assert isinstance(_error("55000", "Meldung", slot="s", phase=phase), SlotDoubted)


@pytest.mark.parametrize("sqlstate", ["22021", "22P02", "23505", "P0001"])
def test_messages_that_quote_values_are_left_out_and_the_position_is_kept(sqlstate: str) -> None:
    context = 'slot "s", output plugin "pgoutput", in the change callback, associated LSN 0/1A2B3C; canary-value'
    error = _error(sqlstate, "canary-value", context=context, doing="the stream")
    assert "canary" not in str(error) + error.hint
    assert "0/1A2B3C" in str(error)
    assert sqlstate in str(error)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 port=1 password=canary-secret",
        "postgresql://u:canary-secret@127.0.0.1:1/d",
        "host=x canary-secret",
        "host=x pasword=canary-secret",
    ],
)
def test_no_secret_of_the_connection_string_is_repeated(dsn: str) -> None:
    options = SourceOptions(dsn=dsn, slot="s", publication="p", application_name="a", connect_timeout_s=2)
    assert "canary" not in repr(options)
    with pytest.raises(ServiceError) as caught:
        open_query(options)
    assert isinstance(caught.value, SourceUnavailable | UsageError)
    assert "canary" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    "said",
    [
        "SSL error: unexpected eof while reading",
        "server closed the connection unexpectedly\nSSL error: certificate verify failed",
        "SSL SYSCALL error: EOF detected",
        "SSL error: tlsv1 alert internal error",
        "SSL error: decryption failed or bad record mac",
        "server sent an error response during SSL exchange",
        "Connection refused",
    ],
)
def test_a_connection_that_may_succeed_next_time_is_tried_again(said: str) -> None:
    assert type(_connect_error(said)) is SourceUnavailable


@pytest.mark.parametrize("sqlstate", ["08006", "53300", "55000", "57014", "57P01", "57P03", "XX000", "58000"])
def test_a_server_that_may_accept_next_time_is_tried_again(sqlstate: str) -> None:
    assert isinstance(_connect_error("FATAL:  Passwort certificate", sqlstate), SourceUnavailable)


def test_without_a_free_connection_the_settings_to_raise_are_named() -> None:
    assert "max_wal_senders" in _connect_error("FATAL:  zu viele Verbindungen", "53300").hint


@pytest.mark.parametrize(
    ("sqlstate", "hint"),
    [
        ("08P01", "pooler"),
        ("0A000", "pooler"),
        ("22012", "login event trigger"),
        ("42P01", "login event trigger"),
        ("28000", "pg_hba.conf"),
        ("28P01", "password"),
        ("3D000", "database"),
        ("42501", "REPLICATION"),
        ("42704", "pooler"),
        ("P0001", "login event trigger"),
    ],
)
def test_a_server_that_refuses_is_understood_by_its_code(sqlstate: str, hint: str) -> None:
    error = _connect_error("FATAL:  SSL SYSCALL error", sqlstate)
    assert (type(error), hint in error.hint, sqlstate in str(error)) == (SourceRefused, True, True)


@pytest.mark.parametrize("said", ["Temporary failure in name resolution", "Name or service not known"])
def test_a_name_that_cannot_be_resolved_now_is_tried_again(said: str) -> None:
    error = psycopg.OperationalError(f"failed to resolve host 'db': [Errno -3] {said}")
    assert type(connect_error(error, sqlstate="", password="")) is SourceUnavailable


@pytest.mark.parametrize(
    "said",
    [
        "SSL error: certificate verify failed",
        'server certificate for "db" does not match host name "127.0.0.1"',
        'root certificate file "/x" does not exist',
        "SSL error: ssl/tls alert handshake failure",
        "SSL error: tlsv1 alert protocol version",
        "SSL error: tlsv1 alert unknown ca",
        "SSL error: wrong version number",
        "server does not support SSL, but SSL was required",
        "received invalid response to SSL negotiation: H",
        'private key file "/x" has group or world access; file must have permissions u=rw (0600) or less',
        "fe_sendauth: no password supplied",
    ],
)
def test_a_connection_that_is_refused_needs_a_person(said: str) -> None:
    error = _connect_error(said)
    assert type(error) is SourceRefused
    assert error.hint


def _connect_error(said: str, sqlstate: str = "") -> ServiceError:
    return connect_error(
        psycopg.OperationalError(f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {said}'),
        sqlstate=sqlstate,
        password="canary",
    )


@pytest.mark.parametrize("phase", ["start", "stream"])
def test_wal_that_is_gone_while_it_is_streamed_does_not_come_back(phase: str) -> None:
    error = _error("58P01", "requested WAL segment 0001 has already been removed", slot="s", phase=phase)
    assert isinstance(error, SlotLost)
    assert str(error).startswith("WAL_REMOVED: ")
