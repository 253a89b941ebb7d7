"""The two sides that `verify` compares make the same hashes of the same rows: the source of its rows,
the lake of what ingest has stored of them.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sluice.contract import envelope
from sluice.contract.row_form import PROBES
from sluice.ingest.snapshot.reader import SnapshotRaced
from sluice.operate.compare.source_side import Form, Load, SourceTable, opened
from sluice.source.sessions import open_query
from sluice.source.snapshot_export import SnapshotHolder
from sluice_spark.read.changes import read_rows
from sluice_spark.verify.hashing import hash_texts
from sluice_spark.verify.scan import ScanTask
from tests.support import type_matrix
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline, encoded_in
from tests.support.source_setup import facts_of
from tests.support.sources import Database
from tools.local.postgres import PostgresServer

SEED = -4242424242424242


def spooled(pipeline: IngestPipeline, name: str) -> pa.Table:
    """The rows of the table's snapshot, with the columns that a lake table has."""
    tables = [rows for segment in pipeline.segments(name, snapshot=True) for rows in read_rows(pipeline.store, segment)]
    schema = pipeline.table(name).schemas[1]
    return pa.concat_tables(tables).select([*(column.name for column in schema.columns), envelope.SPECIAL])


@contextmanager
def read(pipeline: IngestPipeline, name: str, *meanwhile: str, bits: int = 4) -> Iterator[SourceTable]:
    """The table in a snapshot that was taken before what happens `meanwhile`."""
    options, state = pipeline.known(), pipeline.table(name)
    schema, facts = state.schemas[state.schema_version], facts_of(options, state.table_id)
    with closing(SnapshotHolder.open(options)) as holder:
        pipeline.execute(*meanwhile)
        snapshot, form = holder.snapshot_name, Form.of(options, SEED)
        with opened(options, schema=schema, facts=facts, snapshot=snapshot, form=form, bits=bits, load=Load()) as table:
            yield table


def both(pipeline: IngestPipeline, name: str, *, bits: int = 4) -> tuple[dict[int, int], dict[int, int]]:
    """Hash of the key to hash of the row, at the source and in the spool."""
    with read(pipeline, name, bits=bits) as table:
        source = {row.key_hash: row.row_hash for row in table.rows(range(1 << bits))}
        sums = table.sums()
    schema, form = pipeline.table(name).schemas[1], Form.of(pipeline.known(), SEED)
    task = ScanTask(schema, (), SEED % (1 << 64), bits, form.as_hex, np.empty(0, np.uint64), tuple(range(1 << bits)))
    rows = spooled(pipeline, name)
    lake = dict(zip(*(hashes.view(np.int64).tolist() for hashes in task.hashes(rows)), strict=True))
    added: dict[int, tuple[int, int]] = {}
    for key, row in lake.items():
        count, total = added.get(key % (1 << bits), (0, 0))
        added[key % (1 << bits)] = (count + 1, (total + row) % (1 << 64))
    assert added == sums
    return source, lake


@slow
def test_both_sides_hash_every_type_alike(database: Database, pipeline: IngestPipeline) -> None:
    pipeline.run(
        *type_matrix.DEFINITIONS,
        "CREATE TABLE public.mood_holder (m mood)",
        type_matrix.create_table(),
        *type_matrix.inserts(),
    )
    source, lake = both(pipeline, f"{type_matrix.SCHEMA}.{type_matrix.NAME}")
    assert len(source) == type_matrix.ROW_COUNT
    assert source == lake


def test_arrays_that_were_cut_from_others_are_hashed_by_what_they_hold(
    database: Database, pipeline: IngestPipeline
) -> None:
    """They may say that they have a null, as those had."""
    pipeline.run(
        "CREATE TABLE cut (id int PRIMARY KEY, d float8[], r real[])",
        "INSERT INTO cut VALUES (1, ('{NULL,0.1,2}'::float8[])[2:3], ('{NULL,NaN}'::real[])[2:2]), "
        "(2, '{0.1,2}', '{NaN}'), (3, '{NULL,0.1}', '{}'), (4, NULL, '{NULL}')",
    )
    with database.connect() as connection:
        flags = "SELECT get_byte(array_send(d), 7) FROM cut WHERE id < 3 ORDER BY id"
        assert connection.execute(flags).fetchall() == [(1,), (0,)]
    source, lake = both(pipeline, "public.cut")
    assert source == lake


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_both_sides_hash_alike_where_the_server_is_not_in_utf8(
    postgres: PostgresServer, tmp_path: Path, encoding: str
) -> None:
    with encoded_in(postgres, tmp_path, encoding) as other:
        other.run(
            "CREATE TABLE t (id text PRIMARY KEY, v text, n int)",
            "INSERT INTO t VALUES ('\u00fc', 'gr\u00fcn', 1), ('b', NULL, 2)",
        )
        source, lake = both(other, "public.t")
        assert source == lake
        assert len(source) == 2


def test_keys_of_every_kind_are_hashed_alike(database: Database, pipeline: IngestPipeline) -> None:
    pipeline.run(
        "CREATE TABLE odd (f float8, g real, t text, n numeric(6,2), d date, b bytea, c char(3), u uuid, v int, "
        "PRIMARY KEY (f, g, t, n, d, b, c, u))",
        "INSERT INTO odd VALUES ('NaN', '-0', '|', 'NaN', 'infinity', '\\x00', 'a', gen_random_uuid(), 1), "
        "('-0', 'NaN', '', 0, '0044-03-15 BC', '', '', gen_random_uuid(), NULL), "
        "(1e300, 0.1, 'ä', -0.05, '2024-02-29', '\\x7c', 'ü', gen_random_uuid(), 3)",
        "CREATE TABLE wide (id int PRIMARY KEY, " + ", ".join(f"c{n} int DEFAULT {n}" for n in range(250)) + ")",
        "INSERT INTO wide SELECT generate_series(1, 100)",
    )
    for name in ("public.odd", "public.wide"):
        source, lake = both(pipeline, name)
        assert source == lake
        assert source


def test_a_server_and_this_machine_agree_on_the_hashes_of_all_lengths(
    database: Database, pipeline: IngestPipeline
) -> None:
    texts = [*PROBES, *("ü" * length + "x" * (length % 5) for length in range(200))]
    with closing(open_query(pipeline.options().source)) as connection:
        for seed in (0, 1, -1, SEED):
            found = connection.execute(
                'SELECT hashtextextended(t COLLATE "C", %s) FROM unnest(%s::text[]) WITH ORDINALITY u(t, n) ORDER BY n',
                (seed, texts),
            ).fetchall()
            assert hash_texts(pa.array(texts), seed % (1 << 64)).view(np.int64).tolist() == [row[0] for row in found]


def test_a_table_that_was_truncated_behind_the_snapshot_is_not_compared(
    database: Database, pipeline: IngestPipeline
) -> None:
    """It would read as empty."""
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with pytest.raises(SnapshotRaced), read(pipeline, "public.t", "TRUNCATE t"):
        pass
