"""What the server makes of values under a column rule, for `verify` and for repairs, is what ingest stores of
them; and no log of a server that logs everything has the key.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_values import HashKeys, blocks, made_of
from sluice.contract.schema import ColumnRule
from sluice.errors import UnsupportedChange
from sluice.ingest.snapshot.repair_rows import read_again
from sluice.operate.compare.source_side import Form, Load, opened
from sluice.source.rule_sql import text_sent, text_stored, with_hash_keys
from sluice.source.sessions import KnownSource, open_query
from sluice.source.snapshot_export import SnapshotHolder
from tests.support.column_rules import KEYS, hashed, mask, truncate, under, with_keys
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline, encoded_in
from tests.support.source_setup import facts_of
from tests.support.sources import fresh_database
from tests.support.type_matrix import COLUMNS, DEFINITIONS
from tools.local.postgres import PostgresServer, temporary_server

RULES = {"mask": mask("it's \\ ä"), "truncate": truncate(3), "hash": hashed(KEYS[0]), "long key": hashed(KEYS[1])}


def known_with_keys(pipeline: IngestPipeline) -> KnownSource:
    options = pipeline.known()
    options.hash_keys.add(HashKeys(KEYS))
    return options


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_type_is_ruled_alike_on_both_sides(pipeline: IngestPipeline, rule: ColumnRule) -> None:
    pipeline.execute(
        *DEFINITIONS,
        "CREATE TABLE public.mood_holder (m public.mood)",
        f"CREATE TABLE t (id int, {', '.join(f'c{number} {kind}' for number, kind in enumerate(COLUMNS))})",
        *(
            f"INSERT INTO t VALUES ({number}, {', '.join(values[number % len(values)] for values in COLUMNS.values())})"
            for number in range(5)
        ),
        "INSERT INTO t (id) VALUES (100)",
        f"CREATE PUBLICATION {pipeline.database.publication} FOR TABLE t",
    )
    pipeline.run(**under(with_keys({"c0": rule})))
    options = with_hash_keys(known_with_keys(pipeline), pipeline.table("public.t").schemas[1].columns)
    facts = of_table(pipeline, options)
    with closing(open_query(options)) as connection:
        for column in facts.columns:
            query = f"SELECT {text_sent(column)}, {text_stored(column, rule)} FROM public.t"
            rows = connection.execute(query.encode()).fetchall()
            assert len(rows) == 6
            for sent, stored in rows:
                assert stored == made_of(rule, sent, HashKeys(KEYS), where=column.name), column.type_name


def of_table(pipeline: IngestPipeline, options: KnownSource) -> TableFacts:
    return facts_of(options, pipeline.table("public.t").table_id)


@slow
def test_a_server_with_another_encoding_makes_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    with encoded_in(postgres, tmp_path, "LATIN1") as pipeline:
        pipeline.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'äöü ÄÖÜ')",
            f"CREATE PUBLICATION {pipeline.database.publication} FOR TABLE t",
        )
        for rule in RULES.values():
            pipeline.run(**under(with_keys({"v": rule})))
            schema = pipeline.table("public.t").schemas[1]
            options = with_hash_keys(known_with_keys(pipeline), [replace(schema.columns[1], rule=rule)])
            column = next(one for one in of_table(pipeline, options).columns if one.name == "v")
            with closing(open_query(options)) as connection:
                row = connection.execute(f"SELECT {text_stored(column, rule)} FROM public.t".encode()).fetchone()
            assert row == (made_of(rule, "äöü ÄÖÜ", HashKeys(KEYS), where="v"),)


def test_a_server_that_counts_bytes_is_not_asked_for_characters(postgres: PostgresServer, tmp_path: Path) -> None:
    with encoded_in(postgres, tmp_path, "SQL_ASCII") as pipeline:
        pipeline.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'äöü')",
            f"CREATE PUBLICATION {pipeline.database.publication} FOR TABLE t",
        )
        pipeline.run(**under(with_keys({"v": truncate(2)})))
        assert pipeline.snapshot_rows("public.t") == {("1", "äö")}
        options, schema = known_with_keys(pipeline), pipeline.table("public.t").schemas[1]
        facts, form = of_table(pipeline, options), Form.of(options, 42)
        with (
            closing(SnapshotHolder.open(options)) as holder,
            pytest.raises(UnsupportedChange, match="counts bytes"),
            opened(options, schema=schema, facts=facts, snapshot=holder.snapshot_name, form=form, bits=6, load=Load()),
        ):
            pass


def test_no_log_of_the_server_has_the_key(tmp_path: Path) -> None:
    settings = {"log_statement": "all", "log_connections": "on", "log_min_duration_statement": "0"}
    with (
        temporary_server(settings={**settings, "log_error_verbosity": "verbose"}) as server,
        fresh_database(server) as database,
    ):
        pipeline = IngestPipeline.local(database, tmp_path)
        database.execute(
            "CREATE TABLE t (email text PRIMARY KEY, v text)",
            "INSERT INTO t VALUES ('a@b.example', 'a'), ('b@b.example', 'b')",
            f"CREATE PUBLICATION {database.publication} FOR TABLE t",
        )
        pipeline.run(**under(with_keys({"email": hashed(KEYS[0])})))
        options, schema = known_with_keys(pipeline), pipeline.table("public.t").schemas[1]
        wanted = [(made_of(hashed(KEYS[0]), text, HashKeys(KEYS), where="") or "",) for text in ("a@b.example", "gone")]
        facts = of_table(pipeline, options)
        with closing(SnapshotHolder.open(options)) as holder:
            again = read_again(options, schema, facts, holder, wanted)
            assert again.stats.ops == {"u": 1, "d": 1}
            form = Form.of(options, 42)
            with opened(
                options, schema=schema, facts=facts, snapshot=holder.snapshot_name, form=form, bits=6, load=Load()
            ) as table:
                assert {row.key for row in table.rows(range(64))} >= {wanted[0]}
        log = server.log_path.read_text()
        assert "sluice.inner_" in log, "it logs statements"
        inner, outer = blocks(KEYS[0])
        assert not any(secret in log for secret in (KEYS[0].decode(), KEYS[0].hex(), inner.hex(), outer.hex()))
