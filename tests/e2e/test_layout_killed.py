"""A table under load whose layout and tracked columns change in the configuration, while `sluice up` is killed around
each restart: every lake table stays what its source was at each commit, in its kind, and either lies as it is
configured or says by name why not.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.orders import SECONDS, Source, check, configure, current, kill_in_between, pipeline_of, reported
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

pytestmark = [slow, pytest.mark.timeout(3600)]
SEED = 28
KINDS = {"orders": "mirror", "versions": "history", "changes": "changelog"}
VECTORS = "delta.enableDeletionVectors"


@dataclass
class Story:
    pipeline: Pipeline
    source: Source
    choice: random.Random
    generation: int = 1
    process: SluiceProcess = field(init=False)

    def path(self, name: str) -> Path:
        return self.pipeline.directory / "lake" / "public" / name

    def configure(self, *, track: tuple[str, ...] = (), **layout: Any) -> None:
        history = {"kind": "history", "name": "versions", **({"track": list(track)} if track else {})}
        targets = [{"kind": "mirror"}, history, {"kind": "changelog", "name": "changes"}]
        configure(self.pipeline, {**layout, "targets": targets})

    def restart(self, *, failing: str = "") -> None:
        """Kills, often twice, and lets all come to rest. `failing` is of what each lake table says that it does not lie
        as configured.
        """
        self.again()
        self.rest(failing=failing)

    def again(self) -> None:
        self.process.kill()
        if self.choice.random() < 0.6:
            kill_in_between(self.pipeline, self.choice)
        self.process = self.pipeline.start("up")

    def rest(self, *, failing: str = "") -> None:
        self.reach(failing=failing)
        assert self.source.failed is None, self.source.failed
        for name, kind in KINDS.items():
            check(self.path(name), kind, self.source.at)

    def reach(self, *, failing: str = "") -> None:
        """Each lake table is complete through now."""
        lsn = self.source.commit()

        def there() -> bool:
            rows = reported(self.pipeline).values()
            return len(rows) == len(KINDS) and all(
                (row.state, row.generation) == ("live", self.generation)
                and row.complete_through_lsn >= lsn
                and (failing in row.maintenance.failing.get("layout", "") if failing else not row.maintenance.failing)
                for row in rows
            )

        try:
            wait_until(there, what="each is complete", processes=(self.process,), timeout=SECONDS)
        except AssertionError as error:
            seen = [
                (row.title, row.state, row.generation, row.reason, row.maintenance.failing)
                for row in reported(self.pipeline).values()
            ]
            raise AssertionError(f"{lsn} {failing!r} {seen} {error}") from error

    def resync(self) -> None:
        """From a new snapshot, which is killed. No history knows what was between the last change that was applied and
        the snapshot.
        """
        first = min(row.complete_through_lsn for row in reported(self.pipeline).values())
        asked = self.pipeline.run("resync", "public.orders")
        assert asked.returncode == 0, asked.stderr
        self.generation += 1
        wait_until(
            lambda: any(row.generation == self.generation for row in reported(self.pipeline).values()),
            what="a new snapshot",
            processes=(self.process,),
            timeout=SECONDS,
        )
        self.again()
        self.reach()
        self.source.forget(first, self.source.commit())
        self.rest()

    def end(self) -> None:
        """The source is written to no more, and what stands for it is the source, in all columns."""
        self.source.stop()
        self.rest()
        for name in ("orders", "versions"):
            assert current(self.path(name)) == sorted(self.source.newest), name
        verified = self.pipeline.run("verify", timeout=SECONDS)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert verified.stdout.count(": equal") == 2, verified.stdout

    def lies(self, *, cluster_by: Sequence[str] = (), partition_by: Sequence[str] = ()) -> None:
        for name in KINDS:
            assert self.layout(name)[:2] == (list(cluster_by), list(partition_by)), name

    def layout(self, name: str) -> tuple[list[str], list[str], dict[str, str]]:
        """The clustering and the partitions of a lake table, and its properties, as its log has them."""
        partitions: list[str] = []
        clustering: list[str] = []
        properties: dict[str, str] = {}
        names: dict[str, str] = {}
        for log in sorted((self.path(name) / "_delta_log").glob("*.json")):
            for action in map(json.loads, log.read_text().splitlines()):
                if "metaData" in action:
                    partitions = action["metaData"]["partitionColumns"]
                    properties = action["metaData"]["configuration"]
                    fields = json.loads(action["metaData"]["schemaString"])["fields"]
                    names = {
                        one["metadata"].get("delta.columnMapping.physicalName", one["name"]): one["name"]
                        for one in fields
                    }
                domain = action.get("domainMetadata", {})
                if domain.get("domain") == "delta.clustering":
                    columns = json.loads(domain["configuration"])["clusteringColumns"] if not domain["removed"] else []
                    clustering = [names[column] for (column,) in columns]
        return clustering, partitions, properties


@pytest.fixture
def story(database: Database, tmp_path: Path) -> Iterator[Story]:
    """All lake tables are there, and the source is written to."""
    source = Source(database, random.Random(SEED))
    source.create()
    story = Story(pipeline_of(database, tmp_path / "pipeline"), source, random.Random(SEED))
    story.configure()
    story.process = story.pipeline.start("up")
    with source:
        story.rest()
        yield story
    story.process.kill()


def test_another_clustering_other_properties_and_tracked_columns_hold_from_the_next_start_on(story: Story) -> None:
    story.configure(track=("v",), cluster_by=["v"], properties={"team": "a"})
    story.restart()
    story.lies(cluster_by=["v"])
    assert {story.layout(name)[2]["team"] for name in KINDS} == {"a"}
    story.configure(track=("v", "w"), cluster_by=["id"], properties={"team": "b"})
    story.restart()
    story.lies(cluster_by=["id"])
    assert {story.layout(name)[2]["team"] for name in KINDS} == {"b"}
    story.end()


def test_lake_tables_keep_their_deletion_vectors_or_do_without_until_they_are_made_again(story: Story) -> None:
    story.configure(track=("v",), cluster_by=["v"], properties={VECTORS: "false"})
    story.restart(failing=VECTORS)
    assert {story.layout(name)[2][VECTORS] for name in KINDS} == {"true"}
    story.process.kill()
    log = story.path("orders") / "_delta_log"
    before = len(list(log.glob("*.json")))
    killed = story.pipeline.start("rebuild", "public.orders", "--yes")
    wait_until(lambda: len(list(log.glob("*.json"))) < before, what="a rebuild", timeout=SECONDS)
    killed.kill()
    rebuilt = story.pipeline.run("rebuild", "public.orders", "--yes", timeout=SECONDS)
    assert rebuilt.returncode == 0, rebuilt.stderr
    story.process = story.pipeline.start("up")
    story.rest()
    assert not any(VECTORS in story.layout(name)[2] for name in KINDS)
    story.lies(cluster_by=["v"])
    story.configure(cluster_by=["v"])
    story.restart()
    assert not any(VECTORS in story.layout(name)[2] for name in KINDS)
    story.end()


def test_partitions_and_their_end_wait_for_a_snapshot(story: Story) -> None:
    story.configure(track=("w", "v"), partition_by=["part"])
    story.restart(failing="partition_by asks for part")
    story.lies()
    story.resync()
    story.lies(partition_by=["part"])
    story.configure(track=("v",), cluster_by=["v"])
    story.restart(failing="a partitioned table cannot be clustered")
    story.lies(partition_by=["part"])
    story.resync()
    story.lies(cluster_by=["v"])
    story.end()
