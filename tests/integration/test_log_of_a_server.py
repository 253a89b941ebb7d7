"""The log of a real server, read over the wire: records end where the server's own program says."""

import itertools
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sluice import lsn
from sluice.errors import SlotLost
from sluice.source.log_records import LogPart, ended
from sluice.source.same_log import Mark, _form_of, _part_around, require_same_log
from sluice.source.sessions import KnownSource, SourceOptions, open_query
from sluice.source.slot_facts import server_facts
from tools.local.binaries import helper_account
from tools.local.postgres import PostgresServer, temporary_server

_RECORD = re.compile(r"^rmgr: (\S+) .* tx: +(\d+), lsn: ([0-9A-F/]+), prev \S+ desc: (\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def busy() -> Iterator[PostgresServer]:
    """It has written records of all lengths, and begun a file of its log early."""
    with temporary_server() as server:
        if not (server.bin_dir / "pg_waldump").exists():
            pytest.skip("the server came without pg_waldump")
        with server.superuser() as connection:
            connection.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
            for round_ in range(40):
                _write(connection, round_)
        yield server


def _write(connection: psycopg.Connection, round_: int) -> None:
    for size in (0, 1, 30, 100, 1_000, 2_500, 7_900, 20_000):
        connection.execute("INSERT INTO a VALUES (%s, repeat('x', %s))", (round_ * 100_000 + size, size + round_))
    connection.execute("UPDATE a SET v = v || 'y' WHERE id %% 7 = %s", (round_ % 7,))
    connection.execute("SELECT pg_logical_emit_message(true, 'm', repeat('x', %s))", (round_ * 400,))
    connection.execute(f"CREATE TABLE b{round_} (id int)".encode())
    with connection.transaction(), connection.transaction():
        connection.execute("DELETE FROM a WHERE id % 11 = 0")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO a VALUES (%s, 'prepared')", (-round_ - 1,))
    connection.execute("PREPARE TRANSACTION 'one'")
    connection.execute("COMMIT PREPARED 'one'")
    if round_ == 20:
        connection.execute("SELECT pg_switch_wal()")


def _known(server: PostgresServer) -> KnownSource:
    options = SourceOptions(dsn=server.dsn(), slot="none", publication="none", application_name="log")
    with closing(open_query(options)) as connection:
        return KnownSource.of(options, server_facts(connection, options))


def _records(server: PostgresServer) -> list[tuple[int, int, bool]]:
    """Of each record where it begins, its transaction, and whether it commits one."""
    account = helper_account()
    found = subprocess.run(
        [server.bin_dir / "pg_waldump", "-p", server.data_dir / "pg_wal", _first_file(server)],
        capture_output=True,
        text=True,
        check=False,
        user=account.pw_uid if account is not None else None,
    )
    return [
        (lsn.parse(at), int(xid), manager == "Transaction" and what.startswith("COMMIT"))
        for manager, xid, at, what in _RECORD.findall(found.stdout)
    ]


def _first_file(server: PostgresServer) -> str:
    return min(path.name for path in (server.data_dir / "pg_wal").iterdir() if len(path.name) == 24)


def test_every_record_is_where_the_servers_own_program_says(busy: PostgresServer) -> None:
    known, records = _known(busy), _records(busy)
    with closing(open_query(known)) as connection:
        form = _form_of(connection)
    begins = {ended(at, page_bytes=form.page_bytes, file_bytes=form.file_bytes) for at, _, _ in records}
    through = max(begins)
    for around in sorted(begins)[100 :: max(1, len(begins) // 40)]:
        part = _part_around(known, around, form, kept_lsn=min(begins))
        assert isinstance(part, LogPart)
        assert part.says(around)
        said = {at for at in part.ends if at <= through}
        assert said == {at for at in begins if part.says(at)}


def test_every_commit_is_proven_and_every_other_position_is_refused(busy: PostgresServer) -> None:
    known, records = _known(busy), _records(busy)
    first = records[0][0]
    commits = [(after[0], xid) for (_, xid, commits), after in itertools.pairwise(records) if commits]
    assert len(commits) > 100
    with closing(open_query(known)) as connection:
        for end_lsn, xid in commits[5::20]:
            require_same_log(known, connection, [Mark(end_lsn), Mark(end_lsn, xid)], kept_lsn=first)
            for wrong in (Mark(end_lsn, xid + 7), Mark(end_lsn - 8)):
                if wrong.xid and not xid:
                    continue
                with pytest.raises(SlotLost, match=r"^DIVERGED: "):
                    require_same_log(known, connection, [wrong], kept_lsn=first)
