"""Comments, keys, labels and types of the source in Delta's own places: read by other engines, followed when they
change, in commits that touch no row, and no reason for a window to wait or to fail.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from sluice.contract.applied import AppliedTable
from sluice.contract.description import Description, ForeignKey
from sluice.contract.entries import Table
from sluice.contract.schema import ColumnRule, ExcludedColumn, RuleKind, TableSchema
from sluice.errors import ApplyError
from sluice_spark.lake import arranging
from sluice_spark.lake.commit_way import DIRECT
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import slow

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("who", 2, INT4), column("what", 3, TEXT))
ROWS: list[dict[str, object]] = [{"id": number, "who": number % 3, "what": f"w{number}"} for number in range(1, 9)]
ODD = 'It\'s "all" \\ of\n\u0130t \U0001f600 `x` $1'
SAID = Description(
    ODD,
    foreign_keys=(ForeignKey("to_buyers", (2,), "public.buyers", ("id",)),),
    comments={2: "who bought", 3: ODD},
    labels={3: ("w1", 'w"2')},
)


def _say(pipeline: Pipeline, schema: TableSchema, said: Description) -> None:
    names = (schema.table_id, schema.schema_name, schema.table_name)
    pipeline.manifest.append(Table(*names, None, 1, described=said))


def _apply(pipeline: Pipeline, kind: str = "mirror", **layout: Any) -> AppliedTable:
    return pipeline.applied(target={"kind": kind, "layout": layout})


def _found(pipeline: Pipeline) -> tuple[str | None, dict[str, str], dict[str, dict[str, Any]]]:
    """Comment, our properties, and by column the metadata, as delta-rs reads them."""
    table = DeltaTable(pipeline.path())
    metadata = table.metadata()
    fields = {field["name"]: field["metadata"] for field in json.loads(table.schema().to_json())["fields"]}
    ours = {name: value for name, value in metadata.configuration.items() if name.startswith("sluice.")}
    return metadata.description, ours, fields


def _commits(pipeline: Pipeline) -> list[set[str]]:
    """By version, the kinds of actions besides those that every commit has."""
    files = sorted(pipeline.log().glob("*.json"))
    return [
        {next(iter(json.loads(line))) for line in file.read_text().splitlines()} - {"commitInfo", "txn"}
        for file in files
    ]


@pytest.mark.parametrize("kind", ["mirror", "history", "changelog"])
def test_what_the_source_says_is_read_by_other_engines(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _say(pipeline, SCHEMA, SAID)
    assert not _apply(pipeline, kind).maintenance.failing
    comment, properties, fields = _found(pipeline)
    assert comment == ODD
    assert (properties["sluice.table"], json.loads(properties["sluice.primaryKey"])) == ("public.items", ["id"])
    (key,) = json.loads(properties["sluice.foreignKeys"])
    assert key == {"name": "to_buyers", "columns": ["who"], "table": "public.buyers", "references": ["id"]}
    assert (fields["who"]["comment"], fields["what"]["comment"]) == ("who bought", ODD)
    assert json.loads(fields["what"]["sluice.labels"]) == ["w1", 'w"2']
    assert fields["id"]["sluice.type"] == SCHEMA.columns[0].type_name
    shown = {row.col_name: row.comment for row in pipeline.sql("DESCRIBE {t}")}
    assert (shown["who"], shown["what"]) == ("who bought", ODD)
    if kind == "mirror":
        assert pipeline.keys() == [row["id"] for row in ROWS]


def test_another_comment_is_one_commit_without_files_and_windows_stay_direct(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _say(pipeline, SCHEMA, SAID)
    _apply(pipeline)
    before = len(_commits(pipeline))
    _say(pipeline, SCHEMA, replace(SAID, comment="", foreign_keys=(), comments={2: "whom"}, labels={}))
    _apply(pipeline)
    assert _commits(pipeline)[before:] == [{"metaData"}]
    comment, properties, fields = _found(pipeline)
    assert (comment, properties.keys() & {"sluice.commented", "sluice.foreignKeys"}) == (None, set())
    assert fields["who"]["comment"] == "whom"
    assert not {"comment", "sluice.labels", "sluice.commented"} & fields["what"].keys()
    pipeline.change(Change("u", {"id": 3, "who": 9}, unchanged=("what",)))
    assert _apply(pipeline).way == DIRECT
    assert len(_commits(pipeline)) == before + 2, "nothing is said twice"


@slow
def test_a_comment_of_somebody_else_stays_where_the_source_has_none(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline)
    pipeline.sql("ALTER TABLE {t} ALTER COLUMN who COMMENT 'ours'")
    pipeline.sql("ALTER TABLE {t} SET TBLPROPERTIES ('comment' = 'ours', 'sluice.mine' = '1')")
    _say(pipeline, SCHEMA, Description(comments={3: "x"}))
    _apply(pipeline)
    comment, properties, fields = _found(pipeline)
    assert (comment, properties["sluice.mine"]) == ("ours", "1")
    assert (fields["who"]["comment"], fields["what"]["comment"]) == ("ours", "x")


def test_a_comment_that_the_configuration_sets_is_not_replaced_by_that_of_the_source(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _say(pipeline, SCHEMA, SAID)
    properties = (("comment", "configured"),)
    _apply(pipeline, properties=properties)
    assert _found(pipeline)[0] == "configured"
    version = pipeline.version()
    _apply(pipeline, properties=properties)
    assert pipeline.version() == version, "the comment was set again"


def test_a_column_under_a_rule_says_so_and_not_what_its_labels_are(pipeline: Pipeline) -> None:
    identity, who, what = SCHEMA.columns
    hashed = replace(what, rule=ColumnRule(RuleKind.HASH, listed_as="what", key_id="1a2b3c4d"))
    card = ExcludedColumn(3, column("card", 4, TEXT))
    schema = replace(SCHEMA, columns=(identity, who, hashed), excluded=(card,))
    pipeline.begin(schema, *ROWS)
    _say(pipeline, schema, replace(SAID, comments={3: "a mood", 4: "of a customer"}))
    _apply(pipeline)
    _, properties, fields = _found(pipeline)
    assert fields["what"]["comment"] == "a mood\nColumn rule: hash with key 1a2b3c4d"
    assert (fields["what"]["sluice.rule"], "sluice.labels" in fields["what"]) == ("hash with key 1a2b3c4d", False)
    assert json.loads(properties["sluice.excludedColumns"]) == ["card"]
    assert "customer" not in "".join(file.read_text() for file in pipeline.log().glob("*.json"))


@slow
def test_comments_go_with_their_columns_through_renames_additions_and_a_resync(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _say(pipeline, SCHEMA, SAID)
    _apply(pipeline)
    identity, who, what = SCHEMA.columns
    # The two names are exchanged, and a column comes.
    exchanged = table_schema(
        identity, replace(what, name="who"), replace(who, name="what"), column("new", 4, TEXT), version=2
    )
    pipeline.evolve(exchanged)
    pipeline.change(Change("i", {"id": 50, "who": "x", "what": 1, "new": "y"}))
    _apply(pipeline)
    _, properties, fields = _found(pipeline)
    assert (fields["what"]["comment"], fields["who"]["comment"]) == ("who bought", ODD)
    assert json.loads(properties["sluice.foreignKeys"])[0]["columns"] == ["what"]
    assert fields["new"]["sluice.type"] == exchanged.columns[3].type_name
    pipeline.begin(exchanged, {"id": 1, "who": "a", "what": 2, "new": "b"}, generation=2)
    _apply(pipeline)
    assert _found(pipeline)[2]["who"]["comment"] == ODD


def test_a_comment_that_cannot_be_committed_is_a_problem_and_holds_no_window_up(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arranging, "AGAIN_SECONDS", 0.0)
    pipeline.begin(SCHEMA, *ROWS)

    def refused(*_: object) -> None:
        raise ApplyError("no more of this")

    with monkeypatch.context() as patched:
        patched.setattr(arranging, "tell", refused)
        _say(pipeline, SCHEMA, SAID)
        pipeline.change(Change("d", old={"id": 4}))
        row = _apply(pipeline)
        assert (row.maintenance.failing["layout"], row.way) == ("no more of this", DIRECT)
    pipeline.change(Change("d", old={"id": 5}))
    assert not _apply(pipeline).maintenance.failing
    assert _found(pipeline)[0] == ODD
    assert pipeline.keys() == [1, 2, 3, 6, 7, 8]
