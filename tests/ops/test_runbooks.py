"""The commands of the runbooks do what the pages promise, while ingest is gone: as in a pod that does
not stay up.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.monitoring.files import RUNBOOKS
from sluice_spark import session
from sluice_spark.options import ApplyOptions
from tests.ops import helm, manifests
from tests.support import commands, markdown
from tests.support.extent import slow
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / RUNBOOKS).glob("*.md"))
PROMISED = {
    "status": ["the slot", "left open", "waiting for its end", "no applier has worked", "stale_one"],
    "slot show": [
        "wal status",
        "reserved",
        "confirmed flush lsn",
        "safe wal bytes",
        "problem",
        "what to do",
        "active pid",
    ],
    "tables": ["stale_one", "stale", "snapshot"],
    "tables --state stale --state gap": ["stale_one", "added"],
    "tables --state stale --json": ['"reason"', "stale_one"],
    "tables --state snapshot": ["carried"],
    "tables --state quarantined": ["reason"],
    "spool ls --last 3": ["entry", "through", "1 prepared"],
    "tables --json": ['"maintenance"', '"verified_at"', "stale_one"],
    "check": ["stale_one", "ALTER SYSTEM SET max_slot_wal_keep_size", "ingest does not run"],
}
"""What the comments on the pages say that a command shows."""


@dataclass(frozen=True)
class Scene:
    server: PostgresServer
    pipeline: Pipeline


def _commands(program: str) -> list[str]:
    """The lines of the pages that run `program`, without comments; what follows a pipe is left out."""
    blocks = [block.text for page in PAGES for block in markdown.blocks(page.read_text()) if block.language == "sh"]
    lines = {re.sub(r"\s+# .*$", "", line).strip() for block in blocks for line in block.splitlines()}
    return sorted(line for line in lines if line.split(" ", 1)[0] == program)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A pipeline with a stale table and an open prepared transaction, whose ingest is gone."""
    with temporary_server(settings={"max_slot_wal_keep_size": "1GB", "max_prepared_transactions": "5"}) as server:
        with server.superuser() as admin:
            admin.execute("CREATE TABLE carried (id int PRIMARY KEY)")
            admin.execute("CREATE TABLE stale_one (id int PRIMARY KEY)")
            pipeline = Pipeline(
                tmp_path_factory.mktemp("runbooks"),
                name="shop",
                dsn=server.dsn(),
                settings={"source": {"two_phase": True, "tables": ["public.*"]}, "lake": {"contract": "stop"}},
            )
            assert pipeline.run("run", "--until-caught-up").returncode == 0
            admin.execute("ALTER TABLE stale_one ADD COLUMN added int")
            admin.execute("INSERT INTO stale_one VALUES (1, 1)")
            for statement in ("BEGIN", "INSERT INTO carried VALUES (1)", "PREPARE TRANSACTION 'left open'"):
                admin.execute(statement)
            assert pipeline.run("run", "--until-caught-up").returncode == 0
        yield Scene(server, pipeline)


@slow
@pytest.mark.parametrize("command", _commands("sluice"))
def test_a_command_of_a_runbook_shows_what_the_page_says(command: str, scene: Scene) -> None:
    _, *arguments = shlex.split(command)
    done = scene.pipeline.run(*arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode not in (1, 2), done.stderr
    for promised in PROMISED[" ".join(arguments)]:
        assert promised in done.stdout, done.stdout


@slow
@pytest.mark.parametrize("command", _commands("psql"))
def test_a_query_of_a_runbook_is_answered(command: str, scene: Scene) -> None:
    _, dsn, *arguments = shlex.split(command)
    assert dsn == "$DSN"
    psql = (scene.server.bin_dir / "psql", scene.server.dsn(), "-v", "ON_ERROR_STOP=1")
    done = commands.ended(*psql, *arguments, env={**os.environ, "PAGER": "cat"})
    assert done.returncode == 0, done.stderr


def test_every_promise_belongs_to_a_command_of_a_page() -> None:
    assert {f"sluice {arguments}" for arguments in PROMISED} == set(_commands("sluice"))


@pytest.mark.parametrize("command", _commands("kubectl"))
def test_a_kubectl_line_names_what_the_chart_makes(command: str) -> None:
    rendered = helm.render(helm.feature("default"))
    containers = {container["name"] for pod in manifests.pods(rendered) for container in pod.containers}
    components = {pod.component for pod in manifests.pods(rendered)}
    names = {manifest["metadata"]["name"].replace("shop-sluice", "RELEASE-sluice") for manifest in rendered}
    for container in re.findall(r"(?:-c |--container=)(\S+)", command):
        assert container in containers
    for component in re.findall(r"component=(\w+)", command):
        assert component in components
    for name in re.findall(r"RELEASE-sluice[\w-]*", command):
        assert name.removesuffix("-0") in names
    assert "kubectl exec" not in command or "-c " in command


def test_the_recipe_for_a_pod_that_does_not_stay_up_runs_a_command_in_a_copy_of_it() -> None:
    """kubectl gives the copy the container's environment and volumes, and the command in the place of
    the image's, so it must be a whole one.
    """
    (recipe,) = [line for line in _commands("kubectl") if line.startswith("kubectl debug")]
    options, _, command = recipe.partition(" -- ")
    assert {"--copy-to=sluice-debug", "--container=ingest"} <= set(options.split())
    assert command in _commands("sluice")
    rendered = helm.render(helm.feature("default"))
    (ingest,) = (
        container for pod in manifests.pods(rendered) for container in pod.containers if container["name"] == "ingest"
    )
    # The configuration is named by the environment and a mount, so `sluice status` needs no option.
    assert manifests.environment(ingest)["SLUICE_CONFIG"] == "/etc/sluice/sluice.yaml"


def test_no_page_sends_people_to_a_port_that_nothing_opens(tmp_path: Path) -> None:
    """The port of Spark's own pages, which the applier switches off."""
    options = ApplyOptions("shop", tmp_path.as_uri(), tmp_path.as_uri())
    assert session.settings(options)["spark.ui.enabled"] == "false"
    assert [page.name for page in PAGES if "4040" in page.read_text(encoding="utf-8")] == []
