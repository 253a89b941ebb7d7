"""Bytes that are not UTF-8, in a database that takes any: the server refuses to send them, by name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import SourceRefused
from sluice.operate.new_slot import recreate
from sluice.operate.slots import drop
from tests.integration.test_ingest_conditions import encoded_in
from tests.support.ingesting import IngestPipeline
from tools.local.postgres import PostgresServer


@pytest.fixture
def ascii_only(postgres: PostgresServer, tmp_path: Path) -> Iterator[IngestPipeline]:
    with encoded_in(postgres, tmp_path, "SQL_ASCII") as pipeline:
        yield pipeline


def test_a_value_that_the_server_cannot_send_stops_the_pipeline_by_name(ascii_only: IngestPipeline) -> None:
    """The stream cannot pass the row, so no table can go on; nothing behind it is acknowledged."""
    ascii_only.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    ascii_only.run()
    through = ascii_only.state().through_lsn
    ascii_only.database.execute("INSERT INTO t VALUES (1, E'\\xff')")
    with pytest.raises(SourceRefused) as refused:
        ascii_only.run()
    assert "not valid in its encoding" in refused.value.hint
    assert re.search(r" at [0-9A-F]+/[0-9A-F]+ \(SQLSTATE 22021\)", str(refused.value))
    assert ascii_only.rows("public.t") == []
    assert ascii_only.state().through_lsn <= through + 4096


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
