"""Bytes that are not UTF-8, in a database that takes any: the server refuses to send them, by name."""

import re
from pathlib import Path

import pytest

from sluice.errors import SourceRefused
from sluice.operate.new_slot import recreate
from sluice.operate.slots import drop
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline, encoded_in
from tools.local.postgres import PostgresServer


def test_a_value_that_the_server_cannot_send_stops_the_pipeline_by_name(ascii_only: IngestPipeline) -> None:
    """The stream cannot pass the row, so no table can go on; nothing behind it is acknowledged."""
    ascii_only.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    through = ascii_only.state().through_lsn
    ascii_only.execute("INSERT INTO t VALUES (1, E'\\xff')")
    with pytest.raises(SourceRefused) as refused:
        ascii_only.run()
    assert "not valid in its encoding" in refused.value.hint
    assert re.search(r" at [0-9A-F]+/[0-9A-F]+ \(SQLSTATE 22021\): a row of public\.t$", str(refused.value))
    assert ascii_only.rows("public.t") == []
    assert ascii_only.state().through_lsn <= through + 4096


_MULTI = """COPY "Large T" FROM PROGRAM 'printf "2\\ta\\n3\\t\\\\377\\n"' (ENCODING 'SQL_ASCII')"""


_CASES = {
    "update of a leaf": ("UPDATE child SET v = E'\\xff' WHERE id = 1", "public.root"),
    "copy": (_MULTI, "public.Large T"),
    "delete": ("DELETE FROM whole", "public.whole"),
    "message": ("SELECT pg_logical_emit_message(true, E'\\xff', 'x')", ""),
}


@pytest.mark.parametrize("rows", cases([20, 20_000], quick=[20_000]), ids=["whole", "streamed"])
@pytest.mark.parametrize("case", cases(_CASES, quick=["copy"]))
def test_the_table_of_a_value_that_cannot_be_sent_is_named(ascii_only: IngestPipeline, case: str, rows: int) -> None:
    """Among rows of other tables. What is no row has no table."""
    statement, table = _CASES[case]
    database = ascii_only.database
    database.execute(
        'CREATE TABLE "Large T" (id int PRIMARY KEY, v text)',
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE child PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO root VALUES (1, 'x')",
        "CREATE TABLE whole (id int, v text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "INSERT INTO whole VALUES (1, E'\\xff')",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION {p} FOR ALL TABLES WITH (publish_via_partition_root = true)",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    ascii_only.run(messages=True)
    database.execute(f"BEGIN; INSERT INTO other SELECT generate_series(1, {rows}); {statement}; COMMIT")
    with pytest.raises(SourceRefused, match="22021") as refused:
        ascii_only.run(messages=True)
    assert str(refused.value).endswith(f": a row of {table or 'a table that could not be determined'}")


def test_the_table_of_a_character_that_only_the_databases_encoding_has_is_named(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with encoded_in(postgres, tmp_path, "WIN1252") as windows:
        windows.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        windows.execute("INSERT INTO t SELECT 1, chr(129)")
        with pytest.raises(SourceRefused, match=r"\(SQLSTATE 22P05\): a row of public\.t$"):
            windows.run()


def test_the_way_that_the_hint_names_goes_past_the_value(ascii_only: IngestPipeline) -> None:
    database = ascii_only.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE other (id int PRIMARY KEY)")
    ascii_only.run()
    database.execute("INSERT INTO t VALUES (1, E'\\xff')", "INSERT INTO other VALUES (1)")
    with pytest.raises(SourceRefused) as refused:
        ascii_only.run()
    assert all(f"`sluice {words}`" in refused.value.hint for words in ("slot drop", "slot recreate", "verify --repair"))
    database.execute("UPDATE t SET v = 'corrected'")
    drop(ascii_only.options().source, ascii_only.store)
    done = recreate(ascii_only.options(), ascii_only.store, mirrored=lambda _: True, resync=lambda _: None)
    assert set(done.gaps) == {"public.t", "public.other"}
    database.execute("INSERT INTO t VALUES (2, 'behind it')")
    ascii_only.run()
    assert [row["v"] for row in ascii_only.rows("public.t")] == ["behind it"]
