"""Sessions whose settings nobody else decides."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from sluice.health.source_watch import SourceWatch
from sluice.source.sessions import SourceOptions, open_query, open_replication
from tests.support.pgproxy import Direction, PgProxy
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of
from tests.support.sources import Database

EXPECTED = {
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "search_path": "",
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "client_encoding": "UTF8",
    "application_name": "sluice_test",
}
HOSTILE = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "datestyle": "'German, DMY'",
    "timezone": "'Asia/Kolkata'",
    "intervalstyle": "'iso_8601'",
    "extra_float_digits": "-5",
    "bytea_output": "'escape'",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "search_path": "public, pg_catalog",
    "row_security": "on",
    "statement_timeout": "'1ms'",
    "lock_timeout": "'1ms'",
    "idle_in_transaction_session_timeout": "'1ms'",
    "idle_session_timeout": "'1ms'",
    "transaction_timeout": "'1ms'",
    "client_encoding": "'LATIN1'",
    "client_min_messages": "error",
}


@pytest.fixture
def hostile(database: Database) -> Iterator[SourceOptions]:
    """A role whose settings would spell every value differently and end every session; and a schema
    that shadows the catalog.
    """
    role = f"hostile_{database.name}"
    with database.connect() as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM pg_settings").fetchall()}
        # From 19 on this one is always on.
        if connection.info.server_version >= 190000:
            known.remove("standard_conforming_strings")
    settings = {name: value for name, value in HOSTILE.items() if name in known}
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        *(f"ALTER ROLE {role} SET {name} = {value}" for name, value in settings.items()),
    )
    database.execute(
        "CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'shadowed' $$"
    )
    yield options_of(database, user=role)
    with database.server.superuser() as admin:
        admin.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'".encode())
        admin.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("opener", [open_query, open_replication], ids=["query", "replication"])
def test_every_pin_holds_against_a_role_that_is_set_to_the_contrary(hostile: SourceOptions, opener) -> None:  # type: ignore[no-untyped-def]
    with closing(opener(hostile)) as conn:
        newer = {"transaction_timeout": "0"} if conn.info.server_version >= 170000 else {}
        waits = "0" if opener is open_replication else "10s"
        for name, value in {**EXPECTED, "lock_timeout": waits, **newer}.items():
            assert conn.execute(f"SHOW {name}".encode()).fetchone() == (value,), name


def test_no_session_waits_for_transactions_of_others_whatever_the_role_is_set_to(
    hostile: SourceOptions, database: Database
) -> None:
    """Serializable, read only and deferrable, it would wait for each that is serializable and may write."""
    with database.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        other.execute("SELECT count(*) FROM pg_class")
        in_time = threading.Timer(10, hostile.cancellation.cancel)
        in_time.start()
        with closing(open_query(hostile)) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
        in_time.cancel()


def test_what_the_connection_string_says_in_options_is_kept_unless_we_pin_it(database: Database) -> None:
    dsn = database.dsn + "?options=-c%20work_mem%3D1234kB%20-c%20timezone%3DAsia/Kolkata"
    with closing(open_query(replace(options_of(database), dsn=dsn))) as conn:
        assert conn.execute(b"SHOW work_mem").fetchone() == ("1234kB",)
        assert conn.execute(b"SHOW timezone").fetchone() == ("UTC",)


def test_a_session_is_closed_while_another_thread_waits_for_its_answer(database: Database) -> None:
    """Whoever stops must not wait for a server that does not answer."""
    with PgProxy(database.server.port) as proxy:
        options = replace(options_of(database), dsn=proxy.dsn(dbname=database.name))
        watch = SourceWatch(options)
        watch.keep_open()
        assert watch.ask().error is None
        proxy.hold(Direction.TO_CLIENT)
        asking = threading.Thread(target=watch.ask)
        asking.start()
        # It waits for the next question, and the answer to the last one is held back.
        idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluice_test' AND state = 'idle'"
        wait_until(lambda: database.one(idle) == (1,), what="the server has been asked again")
        closing = threading.Thread(target=watch.close)
        closing.start()
        closing.join(30)
        closed = not closing.is_alive()
        proxy.release(Direction.TO_CLIENT)
        proxy.drop()
        asking.join(60)
        closing.join(60)
        assert closed
        assert not asking.is_alive()
        watch.close()
