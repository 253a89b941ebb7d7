"""source.binary: the same rows as from text, value for value, or a refusal that names the columns."""

import dataclasses
from typing import Any

import pytest

from sluice.errors import SourceRefused
from sluice.operate.check.preflight import run_preflight
from sluice.source.sessions import SourceOptions
from tests.e2e import matrix
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since

REFUSED = {'"char"', "numeric", "numeric(39,0)", "numeric(1000,500)"}
TYPES: dict[str, tuple[str, ...]] = {
    **{name: (*values, *matrix.MARKED.get(name, ())) for name, values in matrix.HELD.items() if name not in REFUSED},
    **{name: matrix.TEXTS[name] for name in ("uuid", "json", "jsonb", "public.mood", '"odd ""schema"."odd type"')},
    **{
        name: (*values, *matrix.MARKED_DOMAINS.get(name, ()))
        for name, values in matrix.DOMAINS.items()
        if not name.endswith(("counts", "moods"))
    },
}


def binary(pipeline: IngestPipeline) -> SourceOptions:
    return dataclasses.replace(pipeline.options().source, binary=True)


def story(types: dict[str, tuple[str, ...]]) -> list[str]:
    """Each value inserted, updated into the next and deleted, under both kinds of old rows, with
    NULLs and values left out between them.
    """
    count = max(map(len, types.values())) + 1
    rows = [
        [values[number] if number < len(values) else "NULL" for values in types.values()] for number in range(count)
    ]
    statements = []
    for table in ("f", "d"):
        statements += [
            f"INSERT INTO {table} VALUES ({number}, repeat('é', 5000), {', '.join(row)})"
            for number, row in enumerate(rows)
        ]
        columns = ", ".join(f"c{number}" for number in range(len(types)))
        statements += [
            f"UPDATE {table} SET ({columns}) = ROW({', '.join(rows[(number + 1) % count])}) WHERE id = {number}"
            for number in range(count)
        ]
        statements += [f"UPDATE {table} SET id = id + 1000 WHERE id % 3 = 0", f"DELETE FROM {table} WHERE id % 2 = 0"]
    return statements


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return [str(row) for row in rows]


def test_the_same_log_read_in_binary_and_as_text_gives_the_same_rows(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(TYPES))
    database.execute(
        *matrix.DEFINITIONS,
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, big text, {columns})" for table in ("f", "d")),
    )
    pipeline.run(
        "ALTER TABLE f REPLICA IDENTITY FULL",
        *(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL" for table in ("f", "d")),
    )
    other = pipeline.twin()
    pipeline.run(*story(TYPES))
    other.run(source=binary(other))
    for name in ("public.f", "public.d"):
        assert other.table(name).state == "live", other.table(name).reason
        rows, expected = other.rows(name), pipeline.rows(name)
        assert len(rows) > 2 * len(TYPES["date"])
        for position, column in enumerate(TYPES):
            assert [str(row[f"c{position}"]) for row in rows] == [str(row[f"c{position}"]) for row in expected], column
        assert plain(rows) == plain(expected)
    assert any(row["_sluice_special"] for row in pipeline.rows("public.f"))


def test_columns_that_cannot_be_read_exactly_are_refused_at_the_start_and_by_check(pipeline: IngestPipeline) -> None:
    columns = (
        "c0 int[], c1 numeric, c2 interval, c3 aclitem, c4 aclitem[], c5 inet, c6 int4range, c7 public.pair, c8 time, "
        'c9 xml, c10 public.counts, c11 "char"'
    )
    database = pipeline.database
    database.execute(
        *matrix.DEFINITIONS,
        f"CREATE TABLE a (id int PRIMARY KEY, fine uuid, {columns})",
        "CREATE TABLE b (id int PRIMARY KEY, mood public.mood)",
    )
    with pytest.raises(
        SourceRefused, match=r"public\.a\.c0 \(integer\[\]\), public\.a\.c1 \(numeric\).* and 2 more"
    ) as caught:
        pipeline.run(source=binary(pipeline))
    assert (caught.value.exit_code, "source.binary to false" in caught.value.hint) == (5, True)
    assert not database.all("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", database.slot)
    findings = [one for one in run_preflight(binary(pipeline), None).findings if one.code == "column.binary"]
    assert [one.object for one in findings] == [f"public.a.c{number}" for number in range(12)]
    assert {one.severity for one in findings} == {"critical"}
    pipeline.run("INSERT INTO a (id) VALUES (1)")
    assert [row["id"] for row in pipeline.rows("public.a", snapshot=True)] == [1]


def test_a_column_that_cannot_be_read_so_and_is_added_later_turns_its_table_stale_by_name(
    pipeline: IngestPipeline,
) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY, v numeric(12,2))")
    with pipeline.running(source=binary(pipeline), watch_interval_s=600) as running:
        running.wait_until_live()
        database.execute(
            "ALTER TABLE a ADD COLUMN span interval",
            "INSERT INTO a VALUES (1, NULL)",
            "INSERT INTO a VALUES (2, '1 day')",
            "INSERT INTO b VALUES (3, 1.5)",
        )
        running.wait_until(lambda: pipeline.table("public.a").state == "stale" and pipeline.segments("public.b"))
    assert "public.a.span" in pipeline.table("public.a").reason
    assert "binary form" in pipeline.table("public.a").reason
    assert pipeline.table("public.b").state == "live"
    assert [str(row["v"]) for row in pipeline.rows("public.b")] == ["1.50"]


def test_a_type_that_the_server_itself_cannot_send_is_a_named_stop(pipeline: IngestPipeline) -> None:
    """An array of a type without a send function has one, which fails."""
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pytest.raises(SourceRefused, match="no binary output function available for type aclitem") as caught:
        _stream_until_refused(pipeline)
    assert "source.binary" in caught.value.hint


def _stream_until_refused(pipeline: IngestPipeline) -> None:
    with pipeline.running(source=binary(pipeline)) as running:
        running.wait_until_live()
        pipeline.execute("ALTER TABLE a ADD COLUMN rights aclitem[]", "INSERT INTO a VALUES (1, '{=r/postgres}')")
        running.wait_until(lambda: running.error is not None)


def test_a_column_list_that_leaves_such_columns_out_is_a_remedy(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    since(database, 15, "column lists")
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v uuid, rights aclitem[])",
        f"CREATE PUBLICATION {database.publication} FOR TABLE a (id, v)",
    )
    pipeline.run(source=binary(pipeline))
    database.execute("INSERT INTO a VALUES (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{=r/postgres}')")
    pipeline.run(source=binary(pipeline))
    assert [(row["id"], row["v"]) for row in pipeline.rows("public.a")] == [(1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]
