"""Comments, keys and labels of the source in the manifest: followed when they change, bounded, and nothing of a column
that a rule keeps out.
"""

from typing import Any

import pytest

from sluice.contract.column_rules import EXCLUDED, ColumnRules
from sluice.contract.description import LONGEST_COMMENT, LONGEST_TABLE_COMMENT, MOST_LABELS, NOTHING, ForeignKey
from sluice.contract.entries import Table
from sluice.contract.schema import ColumnRule, RuleKind
from tests.support.column_rules import under
from tests.support.ingesting import IngestPipeline

STORY = (
    "CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"')",
    "CREATE DOMAIN moods AS mood",
    "CREATE TABLE buyers (a int, b int, PRIMARY KEY (b, a))",
    "CREATE TABLE t (id int PRIMARY KEY, a int, b int, how mood, also moods, card text)",
    "ALTER TABLE t ADD CONSTRAINT bought FOREIGN KEY (b, a) REFERENCES buyers (b, a)",
    "INSERT INTO t VALUES (1, NULL, NULL, 'sad', 'sad'), (2, NULL, NULL, NULL, NULL)",
    "COMMENT ON TABLE t IS 'What was\nsold: \"all\" of it, ''quoted'' \\ \U0001f600'",
    "COMMENT ON COLUMN t.how IS 'a mood'",
    "COMMENT ON COLUMN t.card IS 'of a customer'",
    "CREATE PUBLICATION {p} FOR TABLE t, buyers",
)


pytestmark = pytest.mark.usefixtures("read_again_at_once")


def described(pipeline: IngestPipeline, name: str = "public.t") -> Any:
    return pipeline.table(name).described


def test_what_the_catalog_says_of_a_table_is_in_the_manifest(pipeline: IngestPipeline) -> None:
    pipeline.run(*STORY)
    found = described(pipeline)
    assert found.comment == "What was\nsold: \"all\" of it, 'quoted' \\ \U0001f600"
    assert found.comments == {4: "a mood", 6: "of a customer"}
    assert found.labels == {4: ("sad", 'it\'s "ok"'), 5: ("sad", 'it\'s "ok"')}
    assert found.foreign_keys == (ForeignKey("bought", (3, 2), "public.buyers", ("b", "a")),)
    assert found.primary_key is None, "it is what identifies rows"
    assert described(pipeline, "public.buyers").primary_key == (2, 1), "in the order of the key"


def test_another_comment_is_an_entry_of_its_own_that_begins_no_version(pipeline: IngestPipeline) -> None:
    pipeline.run(*STORY)
    before = pipeline.table("public.t")
    pipeline.run("COMMENT ON TABLE t IS 'other'", "COMMENT ON COLUMN t.how IS NULL", "ALTER TYPE mood ADD VALUE 'x'")
    after = pipeline.table("public.t")
    assert (after.described.comment, after.described.comments) == ("other", {6: "of a customer"})
    assert after.described.labels[4] == ("sad", 'it\'s "ok"', "x")
    assert (after.schemas, after.generation, after.state) == (before.schemas, before.generation, "live")
    entries = pipeline.state().seq
    pipeline.run()
    said = [entry for entry in pipeline.entries() if isinstance(entry.body, Table) and entry.body.described]
    assert [entry.seq for entry in said if entry.seq > entries] == [], "what is said already is not said again"


def test_an_ordinary_table_costs_no_entry(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION {p} FOR TABLE t")
    assert described(pipeline) is not None
    assert described(pipeline) == NOTHING
    assert not [entry for entry in pipeline.entries() if isinstance(entry.body, Table) and entry.body.described]


def test_nothing_is_said_of_a_column_that_a_rule_keeps_out(pipeline: IngestPipeline) -> None:
    rules = ColumnRules({"card": EXCLUDED, "how": ColumnRule(RuleKind.MASK, mask="*"), "b": EXCLUDED})
    pipeline.run(*STORY, **under(rules))
    found = described(pipeline)
    assert (found.comments, found.foreign_keys) == ({4: "a mood"}, ())
    assert found.labels.keys() == {5}, "labels are values of the column"


def test_comments_have_a_greatest_length(pipeline: IngestPipeline) -> None:
    labels = ", ".join(f"'l{number}'" for number in range(MOST_LABELS + 1))
    long = "\u00fc" * 1_000_000
    pipeline.run(
        f"CREATE TYPE many AS ENUM ({labels})",
        "CREATE TABLE t (id int PRIMARY KEY, m many)",
        f"COMMENT ON TABLE t IS '{long}'",
        f"COMMENT ON COLUMN t.m IS '{long}'",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    found = described(pipeline)
    assert (len(found.comment), len(found.comments[2])) == (LONGEST_TABLE_COMMENT, LONGEST_COMMENT)
    assert found.comment.endswith("…")
    assert found.labels == {}
