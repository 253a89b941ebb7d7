"""What is said of a table, and of requests for it, is so today: it goes when its cause does, and
gives way to another cause.
"""

import contextlib
from typing import Any

from sluice.contract.control import ADD, REMOVE, RESYNC, Refusal
from sluice.contract.keys import REFUSED
from sluice.errors import ObjectMissing
from tests.support.ingesting import IngestPipeline

LOOKS: dict[str, Any] = {"tables": (), "watch_interval_s": 0.1}


def refused(pipeline: IngestPipeline) -> set[str]:
    found = set()
    for key in pipeline.store.list(REFUSED):
        with contextlib.suppress(ObjectMissing):  # it went since the listing
            found.add(Refusal.decode(pipeline.store.get(key)).table)
    return found


def test_a_refusal_goes_when_what_it_says_is_not_so_any_more(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE PUBLICATION {p} FOR TABLE a",
    )
    with pipeline.running(**LOOKS) as running:
        running.wait_until(lambda: "a" in {table.table_name for table in pipeline.state().tables.values()})
        pipeline.request(RESYNC, table="b", place=RESYNC)
        pipeline.request(ADD, table="gone", place=ADD)
        pipeline.request(REMOVE, table="a", place=REMOVE)
        running.wait_until(lambda: refused(pipeline) == {"public.a", "public.b", "public.gone"})
        database.execute("ALTER PUBLICATION {p} ADD TABLE b")
        running.wait_until(lambda: refused(pipeline) == {"public.a", "public.gone"})
        database.execute("ALTER PUBLICATION {p} DROP TABLE a")
        running.wait_until(lambda: refused(pipeline) == {"public.gone"})
        running.wait_until(lambda: pipeline.table("public.b").state == "live")


def test_a_table_that_left_says_why_it_is_out_today(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION {p} FOR TABLE a, b")
    said = []
    for patterns, statement in (
        ((), "SELECT 1"),
        (("!public.a",), "SELECT 1"),
        (("!public.a",), f"ALTER PUBLICATION {database.publication} DROP TABLE a"),
        ((), "SELECT 1"),
        (("!public.a",), f"ALTER PUBLICATION {database.publication} ADD TABLE a"),
        ((), "SELECT 1"),
    ):
        pipeline.run(statement, tables=patterns)
        table = pipeline.table("public.a")
        said.append((table.state, table.reason))
    unlisted = ("detached", f"publication {database.publication} no longer carries it")
    left_out = ("detached", "source.tables no longer selects it")
    assert said == [("live", ""), left_out, unlisted, unlisted, left_out, ("live", "")]
    assert pipeline.table("public.a").generation == 2


def test_a_table_that_cannot_be_carried_says_by_what_today(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute('CREATE TABLE a (id int PRIMARY KEY, "V" int, v int)')
    pipeline.run("CREATE PUBLICATION {p} FOR TABLE a", tables=())
    said = [pipeline.table("public.a")]
    for statement in (
        'ALTER TABLE a DROP "V"; ALTER TABLE a ADD "_sluice_op" int',
        'ALTER TABLE a DROP "_sluice_op"',
    ):
        pipeline.run(*statement.split("; "), tables=())
        said.append(pipeline.table("public.a"))
    assert [table.state for table in said] == ["quarantined", "quarantined", "live"]
    assert "only by case" in said[0].reason
    assert "_sluice_op" in said[1].reason
    assert said[2].reason == ""
