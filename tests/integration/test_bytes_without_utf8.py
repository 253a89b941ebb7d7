"""Bytes that are not UTF-8, in a database that takes any: the server refuses to send them, by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import SourceRefused
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
    assert ascii_only.rows("public.t") == []
    assert ascii_only.state().through_lsn <= through + 4096
