"""Tables join and leave a running pipeline by `sluice tables add` and `remove`: proposed as exact SQL,
done with the operator's rights, and never for a table that was not named.
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from sluice.contract.column_rules import ColumnRules
from sluice.manifest.reader import load_state
from sluice.manifest.values import TableState
from sluice.operate.membership import Membership, Proposal
from sluice.source.sessions import open_query
from sluice.tables.policies import Policies, TablePolicy
from tests.support.column_rules import KEYS, hashed
from tests.support.command_line import Sluice
from tests.support.commands import assert_ended
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.source_setup import options_of, since
from tests.support.sources import Database
from tests.support.surfaces import Pipe


@contextmanager
def membership(database: Database, *patterns: str, **policies: TablePolicy) -> Iterator[Membership]:
    options = options_of(database)
    of_tables = Policies(tables={f"public.{name}": policy for name, policy in policies.items()})
    with closing(open_query(options)) as connection:
        yield Membership(connection, publication=options.publication, patterns=patterns, policies=of_tables)


def publish(database: Database, what: str, *, via_root: bool = True) -> None:
    database.execute(f"CREATE PUBLICATION {{p}} {what} WITH (publish_via_partition_root = {str(via_root).lower()})")


def named(pipe: Pipe, name: str) -> TableState | None:
    found = [table for table in load_state(pipe.store).tables.values() if table.table_name == name]
    return max(found, key=lambda table: table.generation_seq, default=None)


@slow
def test_tables_join_leave_and_join_again_while_the_pipeline_runs_as_a_role_without_rights(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE SCHEMA s", "CREATE TABLE s.kept (id int PRIMARY KEY)")
    with pipeline_role(database) as role:
        grant(database, role, tables="s.kept")
        pipe = Pipe(database, tmp_path, dsn=options_as(database, role).dsn, tables='["s.*"]')
        with pipe.start():
            pipe.streaming().live()
            database.execute('CREATE TABLE s."Ret""urns" (id int PRIMARY KEY)', 'INSERT INTO s."Ret""urns" VALUES (1)')
            assert_ended(pipe("tables", "add", 's.Ret"urnz'), 2, 's.Ret"urns')
            blind = pipe("tables", "add", 's.Ret"urns')
            assert_ended(blind, 3)
            assert ("GRANT SELECT" in blind.stdout, blind.stderr.count("nothing was added")) == (True, 1)
            database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA s TO {role}")
            proposed = pipe("tables", "add", 's.Ret"urns')
            assert (proposed.returncode, proposed.stdout) == (
                0,
                f'ALTER PUBLICATION "{database.publication}" ADD TABLE ONLY "s"."Ret""urns";\n',
            )
            assert named(pipe, 'Ret"urns') is None
            applied = partial(pipe, "tables")
            assert_ended(applied("add", "--apply", 's.Ret"urns'), 5, "must be owner of publication")
            applied = partial(applied, SLUICE_OPERATOR_DSN=database.dsn)
            assert_ended(applied("add", "--apply", 's.Ret"urns'), 0)
            pipe.wait(lambda: (table := named(pipe, 'Ret"urns')) and table.state == "live")
            began = time.monotonic()
            gone = applied("remove", "--apply", 's.Ret"urns')
            assert (gone.returncode, "lake table stays" in gone.stdout) == (0, True)
            pipe.wait(lambda: (table := named(pipe, 'Ret"urns')) and table.state == "detached")
            assert time.monotonic() - began < 30
            (shown,) = [one for one in json.loads(pipe("tables", "--json").stdout)["tables"] if one["table"] != "kept"]
            assert "no longer carries it" in shown["reason"]
            assert_ended(pipe("resync", 's.Ret"urns'), 2, "sluice tables add")
            assert_ended(applied("add", "--apply", 's.Ret"urns'), 0)
            pipe.wait(lambda: (table := named(pipe, 'Ret"urns')) and (table.state, table.generation) == ("live", 2))
            kept = named(pipe, "kept")
            assert kept is not None
            assert (kept.state, kept.generation) == ("live", 1)


def test_requests_for_unknown_tables_name_the_nearest_at_once(
    pipeline: IngestPipeline, tmp_path: Path, command: Sluice
) -> None:
    pipeline.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    publish(pipeline.database, "FOR TABLE orders")
    pipe = Pipe(pipeline.database, tmp_path, command=command)
    assert pipe("run", "--until-caught-up").returncode == 0
    for action in ("add", "remove", "resync", "pause", "resume"):
        answer = pipe("tables", action, "public.order")
        assert_ended(answer, 2, "nearest: public.orders")
    assert list(pipe.store.list("control/")) == []


@pytest.mark.parametrize(
    ("what", "table", "statement", "setting"),
    [
        ("FOR TABLE a, b", "a", 'DROP TABLE ONLY "public"."a"', ""),
        ("FOR ALL TABLES", "a", "", "'!public.a' to source.tables: the publication has public.a by FOR ALL TABLES"),
        ("FOR TABLES IN SCHEMA public", "a", "", "'!public.a' to source.tables"),
        ("FOR TABLES IN SCHEMA public, TABLE a", "a", 'DROP TABLE ONLY "public"."a"', "by FOR TABLES IN SCHEMA"),
        ("FOR TABLE root", "root", 'DROP TABLE ONLY "public"."root"', ""),
        ("FOR TABLE root via leaves", "root", 'DROP TABLE ONLY "public"."root"', ""),
        ("FOR TABLE root via leaves", "leaf", "", "by the partitioned table that it is a part of"),
        ("FOR TABLE root, leaf via leaves", "leaf", 'DROP TABLE ONLY "public"."leaf"', "that it is a part of"),
    ],
)
def test_what_takes_a_table_out_depends_on_what_it_is_published_by(
    database: Database, what: str, table: str, statement: str, setting: str
) -> None:
    if "SCHEMA" in what:
        since(database, 15, "whole schemas")
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)",
    )
    publish(database, what.removesuffix(" via leaves"), via_root=not what.endswith(" via leaves"))
    with membership(database) as found:
        assert ("public", table) in found.may_leave
        proposal = found.remove([("public", table)])
    assert proposal.statement.endswith(statement)
    assert bool(proposal.statement) == bool(statement)
    assert setting in "; ".join(proposal.settings)
    assert bool(proposal.settings) == bool(setting)
    if proposal.statement:
        database.execute(proposal.statement)
    with membership(database, "!public." + table) as found:
        assert found.remove([("public", table)]) == Proposal((("public", table),), "")


def test_several_tables_join_by_one_statement_and_those_that_are_there_by_none(database: Database) -> None:
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    publish(database, "FOR TABLE a")
    with membership(database) as found:
        proposal = found.add([("public", name) for name in "abc"])
    assert proposal.statement.endswith('ADD TABLE ONLY "public"."b", ONLY "public"."c"')
    database.execute(proposal.statement)
    with membership(database) as found:
        assert found.add([("public", name) for name in "abc"]).statement == ""


def test_a_table_whose_updates_the_source_would_refuse_is_not_added(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE bare (id int)")
    publish(database, "FOR TABLE a")
    with membership(database) as found:
        assert [finding.code for finding in found.add([("public", "bare")]).refusals] == ["table.no_identity"]


def test_a_table_whose_rule_needs_a_text_that_the_binary_form_lacks_is_not_added(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE f (id int PRIMARY KEY, f float8)")
    publish(database, "FOR TABLE a")
    rules = ColumnRules({"f": hashed(KEYS[0])})
    with membership(database, f=TablePolicy(rules=rules, binary=True)) as found:
        assert [finding.code for finding in found.add([("public", "f")]).refusals] == ["column.rule_binary"]
    with membership(database, f=TablePolicy(rules=rules)) as found:
        assert not found.add([("public", "f")]).refusals


@pytest.mark.parametrize(
    ("patterns", "setting"),
    [
        (("public.b",), "add 'public.[*]x' to source.tables"),
        (("public.*", "!public.[*]*"), "take '!public.[*]*' out of source.tables"),
        (("public.*", "!public.b"), ""),
        (("!public.b",), ""),
    ],
)
def test_a_table_that_the_configuration_leaves_out_needs_more_than_the_publication(
    database: Database, patterns: tuple[str, ...], setting: str
) -> None:
    database.execute('CREATE TABLE "*x" (id int PRIMARY KEY)', "CREATE TABLE b (id int PRIMARY KEY)")
    publish(database, "FOR TABLE b")
    with membership(database, *patterns) as found:
        proposal = found.add([("public", "*x")])
    assert setting in "; ".join(proposal.settings)
    assert bool(proposal.settings) == bool(setting)


def test_a_partitioned_table_says_when_its_partitions_become_tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)",
    )
    publish(database, "FOR TABLE a", via_root=False)
    with membership(database) as found:
        assert "becomes its own table in the lake" in found.add([("public", "root")]).notes[0]


def test_what_a_removed_table_sent_is_neither_waited_for_nor_kept_from_going(pipeline: IngestPipeline) -> None:
    """Its changes lie before and behind the removal in the WAL; the position goes on over them."""
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    pipeline.run(
        "INSERT INTO a VALUES (1)",
        f"ALTER PUBLICATION {database.publication} DROP TABLE a",
        "INSERT INTO a SELECT generate_series(2, 5000)",
        "INSERT INTO b VALUES (1)",
    )
    assert pipeline.table("public.a").state == "detached"
    assert pipeline.confirmed() >= pipeline.state().through_lsn
    assert [row["id"] for row in pipeline.rows("public.b")] == [1]
    pipeline.run(f"ALTER PUBLICATION {database.publication} ADD TABLE a")
    again = pipeline.table("public.a")
    assert (again.state, again.generation) == ("live", 2)
    assert again.snapshot is not None
    assert again.snapshot.rows == 5000
