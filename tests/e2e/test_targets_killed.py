"""Targets that come, go and change while `sluice up` is killed and the source is written to: every lake table is what
its source was at each commit, in its kind, or is stale by name, and `sluice plan` had said so.
"""

import json
import os
import random
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.orders import SECONDS, Source, check, configure, current, kill_in_between, pipeline_of, reach
from tests.spark import lake
from tests.support.extent import slow
from tests.support.pipeline import must, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

SEED = 27
ROUNDS = (("rename", "track"), ("remove", "rename to another kind"), ("kind", "again"), ("kind back", "add"))
"""What changes between two kills, each time in two ways."""
KINDS: dict[str, dict[str, Any]] = {
    "mirror": {"kind": "mirror"},
    "soft": {"kind": "mirror", "deletes": "soft"},
    "history": {"kind": "history"},
    "changelog": {"kind": "changelog"},
}
TRACKS: tuple[list[str], ...] = ([], ["v"], ["v", "w"])
_TITLED = re.compile(r"^lake table public\.orders/?(\w*): (.*)$", re.MULTILINE)


@dataclass
class Story:
    pipeline: Pipeline
    source: Source
    choice: random.Random
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """By name, what the lake table of that name has been given first."""
    names: int = 0

    @property
    def lake(self) -> Path:
        return self.pipeline.directory / "lake" / "public"

    def write(self) -> None:
        targets = [{**one, **({"name": name} if name else {})} for name, one in self.targets.items()]
        configure(self.pipeline, {"targets": targets})

    def fresh(self, kind: str) -> str:
        self.names += 1
        name = f"{kind[:1]}{self.names}"
        self.targets[name] = dict(KINDS[kind])
        if kind == "history" and self.choice.random() < 0.5:
            self.track(name)
        self.held[name] = kind
        return name

    def track(self, name: str) -> None:
        track = self.choice.choice(TRACKS)
        self.targets[name] = {**KINDS["history"], **({"track": track} if track else {})}

    def kind(self, one: dict[str, Any]) -> str:
        return "soft" if one.get("deletes") == "soft" else str(one["kind"])

    def change(self, what: str) -> None:
        """One of the ways in which targets change, of one that is chosen."""
        name = self.choice.choice([name for name in self.targets if name])
        kind = self.kind(self.targets[name])
        if what == "add":
            self.fresh(self.choice.choice(tuple(KINDS)))
        elif what == "again":
            name = self.choice.choice(tuple(self.left))
            self.targets[name] = self.left.pop(name)
        elif what == "track":
            self.track(self.choice.choice([one for one in self.targets if self.targets[one]["kind"] == "history"]))
        elif what == "kind":
            self.targets[name] = dict(KINDS[self.choice.choice([one for one in KINDS if one != kind])])
        elif what == "kind back":
            for other in self.wrong():
                self.targets[other] = dict(KINDS[self.held[other]])
        else:
            self.left[name] = self.targets.pop(name)
            if what == "rename":
                self.fresh(kind)
            elif what == "rename to another kind":
                self.fresh(self.choice.choice([one for one in KINDS if one != kind]))

    def wrong(self) -> set[str]:
        return {name for name, one in self.targets.items() if name and self.kind(one) != self.held[name]}

    def reach(self, process: SluiceProcess) -> None:
        """Each target is complete through now, or stale because its lake table holds another kind."""
        reach(self.pipeline, self.source, process, self.targets, wrong=self.wrong())

    def check(self) -> None:
        for path in sorted(self.lake.iterdir()):
            if (path / "_delta_log").exists():
                check(path, self.held.get(path.name, "mirror"), self.source.at)

    def current(self) -> None:
        """What stands for the source now is the source, in all columns."""
        wrong = self.wrong()
        for name in self.targets:
            if name not in wrong and self.held.get(name) != "changelog":
                assert current(self.lake / (name or "orders")) == sorted(self.source.newest), name

    def left_versions(self) -> dict[str, int]:
        """Of lake tables that are no targets now."""
        folders = {name: self.lake / name for name in self.left}
        return {name: lake.version(path) for name, path in folders.items() if path.exists()}

    def planned(self) -> dict[str, str]:
        """By the name of each lake table, why `plan` says that it would be left behind or stale."""
        answer = self.pipeline.run("plan", "--json")
        found = [one["why"] for one in json.loads(answer.stdout)["tables"] if one["effect"] == "stop"]
        assert answer.returncode == (14 if found else 0), answer.stderr
        return dict(_TITLED.findall("\n".join(found)))


def refuse_while_running(process: SluiceProcess) -> None:
    """Other targets are not taken by a process that runs, and it goes on."""
    seen = process.log.stat().st_size
    os.kill(process.pid, signal.SIGHUP)
    wait_until(
        lambda: b"is not taken" in process.log.read_bytes()[seen:],
        what="other targets are refused",
        processes=(process,),
        timeout=60,
    )


@slow
@pytest.mark.timeout(3600)
def test_targets_that_change_between_kills_are_right_at_each_commit_or_stale(
    database: Database, tmp_path: Path
) -> None:
    choice = random.Random(SEED)
    source = Source(database, random.Random(SEED))
    source.create()
    pipeline = pipeline_of(database, tmp_path / "pipeline")
    story = Story(pipeline, source, choice)
    story.targets[""] = dict(KINDS["mirror"])
    for kind in ("soft", "history", "changelog"):
        story.fresh(kind)
    story.write()
    with source.writing():
        process = pipeline.start("up")
        story.reach(process)
        for changes in ROUNDS:
            before = set(story.targets)
            for what in changes:
                story.change(what)
            story.write()
            planned = story.planned()
            assert planned.keys() >= before - set(story.targets)
            assert planned.keys() - set(story.left) <= story.wrong()
            if choice.random() < 0.4:
                refuse_while_running(process)
            process.kill()
            versions = story.left_versions()
            for _ in range(choice.randrange(3)):
                kill_in_between(pipeline, choice)
            process = pipeline.start("up")
            story.reach(process)
            assert versions == story.left_versions()
            story.check()
        story.reach(process)
    story.reach(process)
    story.check()
    story.current()
    story.targets |= story.left
    story.left = {}
    for name in story.wrong():
        story.targets[name] = dict(KINDS[story.held[name]])
    process.stop()
    story.write()
    with pipeline.start("up") as process:
        story.reach(process)
        story.check()
        story.current()
        must(pipeline, "verify", timeout=SECONDS)
