"""Layouts of lake tables that change while `sluice up` is killed and the source is written to: every lake table is what
its source was at each commit, whatever its files are arranged by, and its log says the layout that was asked for.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.orders import SECONDS, Source, check, configure, current, kill_in_between, pipeline_of, reach, reported
from tests.support.extent import slow
from tests.support.pipeline import must, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SEED = 29
KINDS: dict[str, dict[str, Any]] = {
    "": {"kind": "mirror"},
    "soft": {"kind": "mirror", "name": "soft", "deletes": "soft"},
    "versions": {"kind": "history", "name": "versions"},
}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"cluster_by": ["v"]},
    {"partition_by": ["part"]},
    {"properties": {"delta.enableRowTracking": "true", "team": "a"}},
    {"properties": {"delta.enableChangeDataFeed": "true"}, "cluster_by": ["w", "id"]},
    {"partition_by": ["part"], "properties": {"delta.enableChangeDataFeed": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "false", "team": "b"}},
)


@dataclass
class Story:
    pipeline: Pipeline
    source: Source
    choice: random.Random
    layouts: dict[str, dict[str, Any]] = field(default_factory=lambda: {key: {} for key in KINDS})

    def path(self, name: str) -> Path:
        return self.pipeline.directory / "lake" / "public" / (name or "orders")

    def change(self) -> None:
        """Another layout for one target or two."""
        for name in self.choice.sample(tuple(KINDS), self.choice.randint(1, 2)):
            self.layouts[name] = self.choice.choice([one for one in LAYOUTS if one != self.layouts[name]])
        configure(self.pipeline, {"targets": [{**KINDS[name], **one} for name, one in self.layouts.items()]})

    def reach(self, process: SluiceProcess) -> int:
        return reach(self.pipeline, self.source, process, KINDS)

    def generations(self) -> dict[str, int]:
        return {name: row.generation for name, row in reported(self.pipeline).items()}

    def check(self) -> None:
        for name, kind in (("", "mirror"), ("soft", "soft"), ("versions", "history")):
            check(self.path(name), kind, self.source.at)

    def laid_out(self) -> bool:
        """Whether each table is as its layout says."""
        return all(self._is_laid_out(name) for name in KINDS)

    def _is_laid_out(self, name: str) -> bool:
        wanted, metadata = self.layouts[name], DeltaTable(self.path(name)).metadata()
        properties: dict[str, str] = wanted.get("properties", {})
        clustered = json.loads(_clustering(self.path(name)) or '{"clusteringColumns": []}')["clusteringColumns"]
        return (
            metadata.partition_columns == wanted.get("partition_by", [])
            and properties.items() <= metadata.configuration.items()
            and ("cluster_by" not in wanted or len(clustered) == len(wanted["cluster_by"]))
        )


def _clustering(path: Path) -> str:
    """What the newest commit that says something of the clustering says."""
    found = ""
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            domain = json.loads(line).get("domainMetadata", {})
            if domain.get("domain") == "delta.clustering":
                found = "" if domain.get("removed") else domain["configuration"]
    return found


@slow
@pytest.mark.timeout(3600)
def test_tables_whose_layouts_change_between_kills_are_right_at_each_commit(database: Database, tmp_path: Path) -> None:
    choice = random.Random(SEED)
    source = Source(database, random.Random(SEED))
    source.create()
    pipeline = pipeline_of(database, tmp_path / "pipeline", *KINDS.values())
    story = Story(pipeline, source, choice)
    with source.writing():
        process = pipeline.start("up")
        before = story.reach(process)
        for _ in range(5):
            story.change()
            process.kill()
            for _ in range(choice.randrange(3)):
                kill_in_between(pipeline, choice)
            process = pipeline.start("up")
            before = story.reach(process)
            story.check()
            # Partitions wait for a snapshot.
            generations = story.generations()
            must(pipeline, "resync", "public.orders")
            if choice.random() < 0.7:
                process.kill()
                process = pipeline.start("up")
            wait_until(
                lambda known=generations: all(now > known[name] for name, now in story.generations().items()),  # type: ignore[misc]
                what="each is read again",
                processes=(process,),
                timeout=SECONDS,
            )
            wait_until(story.laid_out, what=f"{story.layouts}", processes=(process,), timeout=SECONDS)
            # What was between the last window and the snapshot, nobody knows. The snapshot is before what is reached.
            story.reach(process)
            source.forget(before, story.reach(process))
            story.check()
    story.reach(process)
    story.check()
    for name in KINDS:
        assert current(story.path(name)) == sorted(source.newest), name
    must(pipeline, "verify", timeout=SECONDS)
    process.stop()
