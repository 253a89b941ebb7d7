"""`plan` of a configuration: before the first run, and of several things about one table."""

import json
from pathlib import Path

import pytest

from sluice.cli.plan import _chosen, exit_code, look
from sluice.settings import load
from tests.integration.test_plan import configured
from tests.integration.test_resyncs import PLAIN
from tests.support import commands
from tests.support.catalog_stories import RESYNC, set_up
from tests.support.ingesting import IngestPipeline

WRONG = {
    "two targets at one path": ("{targets: [{kind: mirror}, {kind: history, name: other}]}", "would both be at"),
    "a mask on the key": ('{columns: {id: {mask: "*"}}}', "different rows would be one"),
    "a rule of no column": ("{columns: {vv: exclude}}", "never had"),
    "a tracked column that is none": ("{targets: [{kind: history, track: [vv]}]}", "did you mean v?"),
    "a history without a key": ("{targets: [{kind: history}]}", "needs a key"),
    "soft deletes without a key": ("{targets: [{kind: mirror, deletes: soft}]}", "needs a key"),
    "partitions by text": ("{partition_by: [v]}", "column 'v' is string"),
}
"""What is configured for the table `t`, and what `plan` says of it."""


def changed(pipeline: IngestPipeline, folder: Path, table: str) -> Path:
    file = configured(pipeline, folder)
    tables = f"tables: {{public.t: {table}}}\n"
    file.write_text(file.read_text().replace("source: {", "source: {tables: ['public.*'], ") + tables)
    return file


@pytest.mark.parametrize("new", [True, False], ids=["before the first run", "of a carried table"])
@pytest.mark.parametrize("name", WRONG)
def test_what_a_configuration_would_stop_is_said_before_the_publication_is_there_too(
    pipeline: IngestPipeline, tmp_path: Path, name: str, new: bool
) -> None:
    table, said = WRONG[name]
    statements = PLAIN[:-1] if new else PLAIN
    if "without a key" in name:
        statements = (*statements, "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL")
    set_up(pipeline, (*statements, "CREATE TABLE other (id int PRIMARY KEY)"))
    if not new:
        pipeline.database.execute(f"ALTER PUBLICATION {pipeline.database.publication} ADD TABLE other")
        pipeline.run(**RESYNC)
    found = look(load(str(changed(pipeline, tmp_path, table)), environ={}).settings)
    stopped = [one for one in found if one.preview.effect == "stop"]
    assert {one.table for one in stopped} <= {"public.t", "public.other"}
    assert any(said in one.preview.why for one in stopped), found
    assert exit_code(found) == 14


def test_settings_of_a_table_that_is_not_there_are_found_with_the_nearest_name(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(pipeline, PLAIN)
    file = changed(pipeline, tmp_path, "{targets: [{kind: history}]}, public.tt: {freshness: 5s}, other.name: {}")
    done = commands.sluice("check", "--json", "-c", str(file))
    found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "table.settings_unmatched"]
    assert [(one["severity"], one["object"]) for one in found] == [("warning", "public.tt"), ("warning", "other.name")]
    assert "did you mean public.t?" in str(found[0])


def test_all_that_is_planned_of_a_table_is_shown_when_it_is_named(pipeline: IngestPipeline, tmp_path: Path) -> None:
    set_up(pipeline, PLAIN)
    pipeline.run(**RESYNC)
    file = changed(pipeline, tmp_path, "{targets: [{kind: history, track: [vv]}], cluster_by: [v, flag]}")
    set_up(pipeline, ("ALTER TABLE t ADD flag boolean", "ALTER TABLE t ALTER v TYPE int USING length(v)"))
    found = look(load(str(file), environ={}).settings)
    assert {one.preview.effect for one in found} == {"snapshot", "stop", "followed"}
    assert _chosen(found, ("public.t",)) == found
