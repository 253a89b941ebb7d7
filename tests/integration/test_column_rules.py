"""Column rules and what becomes of their table: what is refused by name, what begins a new generation, what `plan`
and `check` say before, and what is left out until it is listed.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sluice.cli import cli
from sluice.cli.plan import look
from sluice.cli.policies import policies
from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.errors import PreflightFailed
from sluice.operate.check.preflight import run_preflight
from sluice.settings import Settings, load
from sluice.tables.policies import Policies, TablePolicy
from tests.support.column_rules import HIDDEN, assert_equal, assert_hidden, finding, shape, under, written
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline

BEFORE = written(
    "CREATE TABLE t (id int PRIMARY KEY, card text, v text)",
    "INSERT INTO t VALUES (1, '{hidden}', 'a')",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
PLAIN = under(ColumnRules())
RULED = under(ColumnRules({"card": EXCLUDED}))
YAML = {"public.t": {"columns": {"card": "exclude"}}}


pytestmark = pytest.mark.usefixtures("read_again_at_once")


def settings(pipeline: IngestPipeline, tables: Mapping[str, object]) -> Settings:
    return load(str(written_to(pipeline, tables)), environ={}).settings


def written_to(pipeline: IngestPipeline, tables: Mapping[str, object]) -> Path:
    file = pipeline.configured()
    file.write_text(file.read_text() + yaml.safe_dump({"tables": tables}))
    return file


def planned(pipeline: IngestPipeline, tables: Mapping[str, object]) -> dict[str, tuple[str, str | None, str]]:
    found = look(settings(pipeline, tables))
    return {one.table: (one.preview.effect, one.preview.cause or None, one.preview.why) for one in found}


def found_by_check(pipeline: IngestPipeline, tables: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    configured, known = policies(settings(pipeline, tables)), pipeline.state().tables.values()
    findings = run_preflight(pipeline.options().source, None, policies=configured, known=known).findings
    return {one.code: (one.object, f"{one.seen}; {one.fix_setting}") for one in findings if "rule" in one.code}


def test_a_rule_for_a_column_that_never_was_stops_the_table_and_names_the_nearest(pipeline: IngestPipeline) -> None:
    pipeline.execute(*BEFORE)
    misspelled = {"public.t": {"columns": {"crad": "exclude"}}}
    effect, _, why = planned(pipeline, misspelled)["public.t"]
    assert (effect, "did you mean card?" in why) == ("stop", True)
    where, said = found_by_check(pipeline, misspelled)["column.rule_unknown"]
    assert (where, "did you mean card?" in said) == ("public.t.crad", True)
    pipeline.run(**under(ColumnRules({"crad": EXCLUDED})))
    assert finding(pipeline) == ("quarantined", "column.rule_unknown")
    assert_hidden(pipeline)
    pipeline.run(times=2, **RULED)
    assert_equal(pipeline)


@pytest.mark.parametrize(
    ("target", "code", "effect", "said"),
    [
        pytest.param({"kind": "history", "track": ["vv"]}, "target.track", "stop", "did you mean v?", marks=slow),
        ({"kind": "history", "track": ["card"]}, "target.track", "stop", "a column rule keeps out of the lake"),
        ({"kind": "mirror", "cluster_by": ["idd"]}, "target.cluster_by", "followed", "did you mean id?"),
        pytest.param(
            {"kind": "mirror", "partition_by": ["v"]}, "target.partition_by", "stop", "'v' is string", marks=slow
        ),
    ],
)
def test_columns_of_targets_that_no_lake_table_can_have_are_found_before(
    pipeline: IngestPipeline, target: dict[str, object], code: str, effect: str, said: str
) -> None:
    pipeline.run(*BEFORE, **RULED)
    tables = {"public.t": {**YAML["public.t"], "targets": [target]}}
    shown = CliRunner().invoke(cli, ["check", "-c", str(written_to(pipeline, tables)), "--json"])
    findings = {one["code"]: one for one in json.loads(shown.stdout)["findings"]}
    assert isinstance(shown.exception, PreflightFailed)
    assert (shown.exception.exit_code, findings[code]["severity"]) == (3, "critical")
    assert said in f"{findings[code]['seen']}; {findings[code]['fix_setting']}"
    effects = [(one.preview.effect, one.preview.why) for one in look(settings(pipeline, tables))]
    assert [(seen, said in why) for seen, why in effects if said in why] == [(effect, True)]


@slow
def test_a_clustering_column_that_was_renamed_is_a_warning(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **RULED)
    pipeline.execute("ALTER TABLE t RENAME v TO w")
    tables = {"public.t": {**YAML["public.t"], "cluster_by": ["v"]}}
    file = written_to(pipeline, tables)
    shown = json.loads(CliRunner().invoke(cli, ["check", "-c", str(file), "--json"]).stdout)
    found = {one["code"]: one for one in shown["findings"]}["target.cluster_by"]
    assert (found["severity"], "has no more" in found["seen"]) == ("warning", True)


def test_rules_for_a_table_that_is_not_carried_are_found_before(pipeline: IngestPipeline) -> None:
    """As with partitions that are published one by one, whose root has the rules."""
    pipeline.execute(*BEFORE)
    misspelled = {"public.tt": {"columns": {"card": "exclude"}}}
    effect, _, why = planned(pipeline, misspelled)["public.tt"]
    assert (effect, "did you mean public.t?" in why) == ("stop", True)
    where, said = found_by_check(pipeline, misspelled)["table.rules_unmatched"]
    assert (where, "did you mean public.t?" in said) == ("public.tt", True)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, card)",), marks=slow),
        (
            "ALTER TABLE t ALTER card SET NOT NULL, ADD CONSTRAINT u UNIQUE (card)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
        ),
        pytest.param(
            ("ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, card)"),
            marks=slow,
        ),
    ],
    ids=["primary key", "index", "full"],
)  # fmt: skip
def test_a_column_of_the_key_is_not_excluded_and_its_table_is_stopped_by_name(
    pipeline: IngestPipeline, statements: tuple[str, ...]
) -> None:
    pipeline.execute(*BEFORE, *statements)
    assert "column.rule_on_key" in found_by_check(pipeline, YAML)
    assert planned(pipeline, YAML)["public.t"][0] == "stop"
    pipeline.run(**RULED)
    assert finding(pipeline) == ("quarantined", "column.rule_on_key")
    pipeline.run(f"INSERT INTO t VALUES (2, '{HIDDEN} more', 'b')", **RULED)
    assert_hidden(pipeline)


def test_a_column_that_becomes_part_of_the_key_later_stops_the_table(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **RULED)
    pipeline.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, card)",
        f"UPDATE t SET card = '{HIDDEN} changed'",
    )
    pipeline.run(times=2, **RULED)
    assert finding(pipeline) == ("quarantined", "column.rule_on_key")
    assert_hidden(pipeline)
    pipeline.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)", times=2, **RULED)
    assert_equal(pipeline)


@pytest.mark.parametrize("seen_by", cases(["a row", "a look"], quick=["a row"]))
def test_another_rule_begins_a_generation_and_no_row_more_is_stored_under_the_old_one(
    pipeline: IngestPipeline, seen_by: str
) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, card text, v text)", *BEFORE[2:], **PLAIN)
    if seen_by == "a row":
        pipeline.execute(BEFORE[1])
    effect, cause, why = planned(pipeline, YAML)["public.t"]
    assert (effect, cause) == ("snapshot", "rules")
    assert "card: include becomes exclude" in why
    pipeline.run(times=2, **RULED)
    assert_equal(pipeline, hidden=False)
    assert (pipeline.table("public.t").generation, pipeline.table("public.t").resyncs.counts) == (2, {"rules": 1})
    assert shape(pipeline) == (["id", "v"], ["card"])
    assert planned(pipeline, YAML)["public.t"][0] == "nothing"
    effect, cause, why = planned(pipeline, {})["public.t"]
    assert (effect, cause, "card: exclude becomes include" in why) == ("snapshot", "rules", True)
    pipeline.run(times=2, **PLAIN)
    assert_equal(pipeline, hidden=False)
    assert shape(pipeline) == (["id", "card", "v"], [])


def test_rules_that_are_edited_hold_for_an_ingest_that_runs(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE t (id int PRIMARY KEY, card text, v text)", *BEFORE[2:])
    with pipeline.running(**PLAIN) as running:
        running.wait_until(lambda: pipeline.state().tables and pipeline.table("public.t").state == "live")
        ingest = running.ingest
        running.call(lambda: ingest.reconfigure(pipeline.options(**RULED)))
        pipeline.execute(BEFORE[1])
        running.wait_until(lambda: (now := pipeline.table("public.t")).generation == 2 and now.state == "live")
    assert_equal(pipeline, hidden=False)


def test_a_partition_that_is_published_by_itself_needs_rules_of_its_own(pipeline: IngestPipeline) -> None:
    pipeline.execute(
        *written(
            "CREATE TABLE t (id int PRIMARY KEY, card text) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
            "INSERT INTO t VALUES (1, '{hidden}')",
            "CREATE PUBLICATION {p} FOR TABLE t",
        )
    )
    of_root = {"public.t": TablePolicy(rules=ColumnRules({"card": EXCLUDED}), ruled=frozenset(["public.t"]))}
    policies = Policies(TablePolicy(ruled=frozenset(["public.t"])), of_root)
    assert found_by_check(pipeline, YAML)["partition.rules"][0] == "public.low"
    assert planned(pipeline, YAML)["public.low"][0] == "stop"
    pipeline.run(tables=(), policies=policies)
    assert finding(pipeline, "public.low") == ("quarantined", "partition.rules")
    pipeline.run(times=2, **under(ColumnRules({"card": EXCLUDED}), "public.low", "public.t"))
    assert_equal(pipeline)


@slow
def test_a_table_renamed_away_from_its_rules_waits_until_they_are_listed_for_it(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **RULED)
    pipeline.execute("ALTER TABLE t RENAME TO customers", f"INSERT INTO customers VALUES (2, '{HIDDEN} b', 'b')")
    assert "table.rules_left" in found_by_check(pipeline, YAML)
    assert planned(pipeline, YAML)["public.customers"][0] == "stop"
    pipeline.run(times=2, **RULED)
    assert finding(pipeline, "public.customers") == ("quarantined", "table.rules_left")
    pipeline.run(times=2, **under(ColumnRules({"card": EXCLUDED}), "public.customers"))
    assert_equal(pipeline)
    pipeline.run(times=2, **under(ColumnRules({"card": None}), "public.customers"))
    assert_equal(pipeline, hidden=False)
    assert shape(pipeline, "public.customers") == (["id", "card", "v"], [])


@slow
def test_a_column_that_was_renamed_twice_and_dropped_keeps_its_rule_and_stops_nothing(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **RULED)
    for name, before in (("number", "card"), ("pan", "number")):
        pipeline.run(f"ALTER TABLE t RENAME {before} TO {name}", f"UPDATE t SET {name} = '{HIDDEN} {name}'", **RULED)
        assert shape(pipeline) == (["id", "v"], [name])
    listed_anew = under(ColumnRules({"pan": EXCLUDED}))
    pipeline.run(**listed_anew)
    pipeline.run("ALTER TABLE t RENAME pan TO plain", f"UPDATE t SET plain = '{HIDDEN} plain'", **listed_anew)
    assert shape(pipeline) == (["id", "v"], ["plain"])
    pipeline.run("ALTER TABLE t DROP plain", "INSERT INTO t VALUES (5, 'five')", times=2, **listed_anew)
    assert shape(pipeline) == (["id", "v"], [])
    assert_equal(pipeline)
    assert pipeline.table("public.t").resyncs.counts == {}


def test_new_columns_are_left_out_and_said_until_they_are_listed(
    pipeline: IngestPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = ColumnRules(new_columns="exclude")
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", *BEFORE[2:], **under(denied))
    pipeline.execute("ALTER TABLE t ADD ssn text, ADD w int", f"INSERT INTO t VALUES (2, 'b', '{HIDDEN}', 2)")
    tables = {"public.t": {"new_columns": "exclude"}}
    assert planned(pipeline, tables)["public.t"] == (
        "followed", None, "column ssn added and left out, column w added and left out",
    )  # fmt: skip
    capsys.readouterr()
    pipeline.run(**under(denied))
    assert "left out" in capsys.readouterr().out
    assert shape(pipeline) == (["id", "v"], ["ssn", "w"])
    pipeline.execute("ALTER TABLE t ALTER v TYPE text USING v || '!'", f"UPDATE t SET ssn = '{HIDDEN} again'")
    pipeline.run(times=2, **under(denied))
    assert shape(pipeline) == (["id", "v"], ["ssn", "w"])
    assert pipeline.table("public.t").generation == 2
    some = ColumnRules({"w": None}, new_columns="exclude")
    pipeline.run(times=2, **under(some))
    assert shape(pipeline) == (["id", "v", "w"], ["ssn"])
    assert_equal(pipeline)
    file = pipeline.configured()
    answer = CliRunner().invoke(cli, ["tables", "--columns", "--json", "-c", str(file)])
    assert answer.exit_code == 0, answer.output
    (table,) = json.loads(answer.stdout)["tables"]
    assert [(one["name"], one["type"], one["lake_type"], one["rule"]) for one in table["columns"]] == [
        ("id", "integer", "int", ""),
        ("v", "text", "string", ""),
        ("ssn", "text", "", "exclude"),
        ("w", "integer", "int", ""),
    ]
    shown = CliRunner().invoke(cli, ["tables", "--columns", "-c", str(file)])
    assert "exclude (added later)" in shown.stdout
