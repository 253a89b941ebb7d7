"""The stream and snapshots over TLS, where libpq's reads give one record each."""

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from sluice.errors import SourceRefused, SourceUnavailable
from sluice.ingest.receive.stream import StreamLimits
from sluice.ingest.snapshot.reader import read_table
from sluice.source.catalog import Catalog
from sluice.source.publication import ensure_publication
from sluice.source.sessions import open_query
from sluice.source.slot import ensure_slot
from sluice.source.snapshot_export import SnapshotHolder
from sluice.tables.schemas import build_schema, relation_of
from tests.support.extent import slow
from tests.support.source_setup import known, options_of
from tests.support.sources import Database
from tests.support.streaming import opened
from tests.support.tls_front import Cut, CutAt, make_certificate, tls_front

ROWS = 10_000
SECONDS = 10.0
"""A pause of milliseconds for each record would take several times as long."""


@slow
def test_stream_and_snapshot_run_at_speed_over_tls(database: Database, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    plain = options_of(database)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    with closing(open_query(plain)) as conn:
        ensure_publication(conn, plain.publication, [("public", "t")])
    start = ensure_slot(plain).confirmed_flush_lsn or 0
    database.execute(f"INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, {ROWS}) i")
    with tls_front(database.server.port, certificate, key) as port:
        options = known(replace(plain, dsn=_verified(database, port, certificate)))
        with closing(open_query(options)) as conn:
            assert conn.pgconn.ssl_in_use
            (facts,) = Catalog(conn).published_tables(options.publication)

        async def streamed() -> int:
            stream = await opened(options, start, StreamLimits(max_delay_s=0.2))
            rows = 0
            while rows < ROWS:
                rows += sum(frame[25:26] == b"I" for frame in (await stream.next_batch()).frames)
            await stream.close()
            return rows

        began = time.monotonic()
        assert asyncio.run(streamed()) == ROWS
        assert time.monotonic() - began < SECONDS
        began = time.monotonic()
        with closing(SnapshotHolder.open(options)) as holder:
            schema = build_schema(relation_of(facts), facts, None, 1)
            read = read_table(options, schema=schema, facts=facts, snapshot=holder.snapshot_name)
            assert sum(len(payloads.sizes) for payloads in read) == ROWS + 1
        assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    ("made", "root", "said"),
    [
        ({}, "other", "certificate verify failed"),
        ({}, "missing", "root certificate file"),
        ({"address": "127.0.0.2"}, "own", "does not match host name"),
        ({"valid_hours": -1}, "own", "certificate"),
    ],
    ids=["another authority", "no authority", "another name", "expired"],
)
def test_a_server_that_cannot_prove_who_it_is_is_refused(
    database: Database, tmp_path: Path, made: dict[str, Any], root: str, said: str
) -> None:
    certificate, key = make_certificate(tmp_path, **made)
    other, _ = make_certificate(tmp_path / "other")
    roots = {"own": certificate, "other": other, "missing": tmp_path / "none"}
    with tls_front(database.server.port, certificate, key) as port:
        dsn = _verified(database, port, roots[root])
        with pytest.raises(SourceRefused, match=said) as caught:
            open_query(replace(options_of(database), dsn=dsn))
        assert "sslrootcert" in caught.value.hint


def test_a_server_without_tls_is_refused_where_tls_is_asked_for(database: Database) -> None:
    with pytest.raises(SourceRefused, match="SSL"):
        open_query(replace(options_of(database), dsn=database.dsn + "?sslmode=require"))


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("at", get_args(CutAt))
def test_a_handshake_that_is_cut_is_no_refusal(database: Database, tmp_path: Path, at: CutAt, reset: bool) -> None:
    certificate, key = make_certificate(tmp_path)
    with tls_front(database.server.port, certificate, key, cuts=[Cut(at, reset)]) as port:
        options = replace(options_of(database), dsn=_verified(database, port, certificate))
        with pytest.raises(SourceUnavailable) as caught:
            open_query(options)
        assert caught.value.reason == "connect_failed"
        with closing(open_query(options)) as conn:
            assert conn.pgconn.ssl_in_use


def _verified(database: Database, port: int, certificate: Path) -> str:
    return (
        f"host=127.0.0.1 port={port} user=postgres dbname={database.name} sslmode=verify-full sslrootcert={certificate}"
    )
