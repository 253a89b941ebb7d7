"""One applier for many pipelines whose ingests run elsewhere: `sluice apply --fleet`, as the chart runs it."""

import os
import signal
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.extent import slow
from tests.support.fleets import AppliedFleet, fresh_databases, jvm_below
from tools.local.postgres import PostgresServer

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def pipelines(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppliedFleet]:
    """Two pipelines, and a third whose file is not valid yet."""
    with fresh_databases(postgres, "east", "north", "west") as databases, ExitStack() as stack:
        made = AppliedFleet(tmp_path_factory.mktemp("fleet"), databases)
        stack.callback(made.end)
        for name in ("east", "north"):
            made.configure(name)
            made.ingest(name)
        made.configure("west", surce={})
        made.apply()
        yield made


def test_one_applier_applies_every_pipeline_of_the_folder_and_refuses_one_by_name(pipelines: AppliedFleet) -> None:
    pipelines.until(lambda: pipelines.is_equal("east") and pipelines.is_equal("north"), "two are in the lake")
    assert {name: one["state"] for name, one in pipelines.states().items()} == {"east": "running", "north": "running"}
    said = pipelines.log.read_text()
    assert "a configuration is refused" in said
    assert "west.yaml" in said


def test_its_endpoint_asks_for_the_token_and_each_series_names_its_pipeline(pipelines: AppliedFleet) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        pipelines.get("/metrics", token="")
    assert pipelines.get("/livez", token="")
    series = [line for line in pipelines.get("/metrics").decode().splitlines() if not line.startswith("#")]
    for name in ("east", "north"):
        assert any(f'pipeline="{name}"' in one for one in series)


@slow
def test_after_sighup_a_new_pipeline_joins_and_one_whose_file_is_refused_goes_on(pipelines: AppliedFleet) -> None:
    pipelines.configure("west")
    pipelines.ingest("west")
    (pipelines.folder / "east.yaml").write_text("version: 1\npipeline: east\nsurce: {}\n")
    pipelines.process.send_signal(signal.SIGHUP)
    pipelines.until(lambda: pipelines.is_equal("west"), "the third is in the lake")
    pipelines.databases["east"].execute("INSERT INTO t VALUES (11)")
    pipelines.until(lambda: pipelines.is_equal("east"), "the first goes on")


@slow
def test_a_jvm_that_is_killed_is_started_again_and_each_row_comes_once(pipelines: AppliedFleet) -> None:
    os.kill(jvm_below(pipelines.process.pid), signal.SIGKILL)
    for name in ("east", "north"):
        pipelines.databases[name].execute("INSERT INTO t SELECT max(id) + 1 FROM t")
    pipelines.until(lambda: pipelines.is_equal("east", "north"), "all rows are in the lake")


def test_a_stop_lets_it_finish_and_ends_with_0(pipelines: AppliedFleet) -> None:
    assert pipelines.stop() == 0, pipelines.tail()
