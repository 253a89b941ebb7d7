"""Commands as a user runs them: exit codes, what is on stdout, what is on stderr."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from sluice.cli import cli, wiring
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.entries import Table
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from sluice.manifest.reader import identity
from sluice.operate.compare.recording import Record
from sluice.settings import load
from sluice.store.opening import open_store
from sluice_spark.options import ApplyOptions
from tests.support import commands, manifests
from tests.support.command_line import Sluice
from tests.support.extent import cases
from tests.support.manifests import put
from tests.support.offered import publish
from tests.support.reasons import because
from tests.support.recorded import row
from tests.unit.cli.conftest import CANARY, begun, table

AT = "2026-01-01T00:00:00+00:00"
APPLIED: dict[str, Any] = {"through_seq": 2, "complete_through_lsn": 100, "rows_applied": 7}


def test_init_writes_a_configuration_that_is_valid_and_overwrites_nothing(tmp_path: Path, sluice: Sluice) -> None:
    target = tmp_path / "my shop"
    assert sluice("init", str(target), "--pipeline", "shop").returncode == 0
    assert sluice("config", "validate", cwd=target).returncode == 0
    assert load(str(target / "sluice.yaml"), environ={}).settings.pipeline == "shop"
    before = (target / "sluice.yaml").read_text(encoding="utf-8")
    again = sluice("init", str(target))
    assert again.returncode == 2
    assert "would be overwritten" in again.stderr
    assert (target / "sluice.yaml").read_text(encoding="utf-8") == before
    assert sluice("init", str(target), "--force").returncode == 0


def test_the_variables_that_init_proposes_are_settings(tmp_path: Path, sluice: Sluice) -> None:
    sluice("init", str(tmp_path))
    lines = [line.lstrip("# ") for line in (tmp_path / ".env.example").read_text(encoding="utf-8").splitlines()]
    environ = dict(line.split("=", 1) for line in lines if line.startswith("SLUICE_") and "=" in line)
    assert len(environ) == 3
    assert sluice("config", "validate", cwd=tmp_path, **environ).returncode == 0


def test_a_missing_configuration_is_2_and_says_what_to_do(tmp_path: Path, sluice: Sluice) -> None:
    result = sluice("status", "--json", cwd=tmp_path)
    assert result.returncode == 2
    assert json.loads(result.stdout)["error"]["hint"].startswith("`sluice init` writes one")
    assert "there is no configuration file sluice.yaml" in result.stderr


def test_config_show_masks_secrets_and_gives_origins(configured: Path, sluice: Sluice) -> None:
    shown = sluice("config", "show", cwd=configured, SLUICE_SPOOL__MAX_DELAY="500ms")
    as_json = sluice("config", "show", "--json", cwd=configured, SLUICE_SPOOL__MAX_DELAY="500ms")
    assert shown.returncode == as_json.returncode == 0
    assert CANARY not in shown.stdout + shown.stderr + as_json.stdout + as_json.stderr
    settings = json.loads(as_json.stdout)["settings"]
    assert settings["spool.max_delay"] == {"value": 0.5, "origin": "env SLUICE_SPOOL__MAX_DELAY"}
    assert settings["spool.max_bytes"] == {"value": 128 << 20, "origin": "default"}
    assert settings["source.dsn"] == {"value": "********", "origin": "sluice.yaml:3"}
    assert settings["source.slot"]["value"] == "sluice_shop"


def _times(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """All options of commands below `group` that take an amount of time."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _times(command, *path, name)
        yield from (
            (*path, name, option.opts[0])
            for option in command.params
            if isinstance(option, click.Option) and option.metavar in ("SECONDS", "DURATION", "AGE")
        )


TIMES = sorted(_times(cli))


def test_the_options_that_take_an_amount_of_time_are_these() -> None:
    """One that is added and is not called so would not be tried below."""
    assert [f"{' '.join(path)} {option}" for *path, option in TIMES] == [
        "drain --timeout",
        "plan --seconds",
        "spool gc --retention",
        "status --interval",
        "verify --interval",
        "verify --wait",
        "wait --timeout",
    ]


@pytest.mark.parametrize("path", TIMES, ids=" ".join)
def test_an_amount_of_time_that_is_none_is_refused_before_anything_else(path: tuple[str, ...], sluice: Sluice) -> None:
    *command, option = path
    values = ["nan", "NaN", "inf", "-inf", "-1", "-0.5s", "1e400", "9" * 400, "soon", ""]
    values += [] if path == ("verify", "--wait") else ["0"]
    for value in values:
        ended = sluice(*command, f"{option}={value}", "--json")
        assert ended.returncode == 2, (value, ended)
        assert [line.startswith(f"error: Invalid value for '{option}'") for line in ended.stderr.splitlines()] == [
            True,
            False,  # the hint
        ], (value, ended)
        assert json.loads(ended.stdout)["error"]["class"] == "UsageError"


ODD: dict[str, tuple[str, ...]] = {
    "a directory whose name is no UTF-8": ("init", "b\udce9"),
    "a directory whose name is too long": ("init", "d" * 300),
    "a directory that is a file": ("init", "sluice.yaml"),
    "a number that is none": ("spool", "inspect", "\u00b2"),
    "a number without end": ("spool", "inspect", "9" * 5000),
    "an address that is none": ("replay", "--to", "latest", "--lake", "s3://[x", "--dry-run"),
    "an address that holds a password": ("replay", "--to", "latest", "--lake", "s3://user:word@b/x", "--dry-run"),
    "no position to run to": ("run", "--until-lsn", ""),
    "no position to wait for": ("drain", "--to-lsn", ""),
    "a query that is no UTF-8": ("query", "SELECT 'b\udce9'"),
    "a statement that is no UTF-8": ("plan", "--sql", "ALTER TABLE b\udce9 ADD c int"),
    "no statement": ("plan", "--sql", ""),
    "no directory": ("init", ""),
    "no folder for jars": ("jars", "fetch", "--to", ""),
    "no folder": ("status", "--fleet", ""),
    "no folder of a fleet": ("fleet", ""),
    "a folder whose name is too long": ("status", "--fleet", "d" * 300),
    "a configuration whose name is too long": ("status", "-c", "d" * 300),
    "a configuration that is a folder": ("status", "-c", "."),
    "a configuration that has no name": ("status", "-c", ""),
}
"""What a shell passes on when a variable is empty, and what nobody would type."""


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD)
def test_an_odd_argument_is_an_error_of_usage_and_never_taken_for_its_absence(
    arguments: tuple[str, ...], configured: Path, sluice: Sluice
) -> None:
    begun(configured)
    ended = sluice(*arguments, cwd=configured)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "unexpected" not in ended.stderr


def test_a_variable_that_is_no_utf8_is_an_error_of_usage(configured: Path, sluice: Sluice) -> None:
    ended = sluice("status", cwd=configured, SLUICE_SOURCE__DSN="postgresql://b\udce9@127.0.0.1:1/d")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "SLUICE_SOURCE__DSN holds bytes that are not valid UTF-8" in ended.stderr


def test_without_a_working_directory_commands_say_what_is_missing(tmp_path: Path) -> None:
    """Somebody removed it under the shell."""
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    for arguments in (("init",), ("run",), ("status", "--fleet", "x")):
        command = ("sh", "-c", script, "sh", sys.executable, "-m", "sluice", *arguments)
        ended = commands.ended(*command, cwd=tmp_path)
        assert (ended.returncode, ended.stderr.count("error: ")) == (2, 1), ended.stderr
        assert "unexpected" not in ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_be_taught_to_complete(shell: str, sluice: Sluice) -> None:
    script = sluice("completion", shell)
    assert script.returncode == 0
    assert "_SLUICE_COMPLETE" in script.stdout


def test_config_schema_and_env_and_version_need_no_configuration(tmp_path: Path, sluice: Sluice) -> None:
    assert json.loads(sluice("config", "schema", cwd=tmp_path).stdout)["title"] == "Sluice pipeline"
    assert "SLUICE_SOURCE__DSN" in sluice("config", "env", cwd=tmp_path).stdout
    version = json.loads(sluice("version", "--json", cwd=tmp_path).stdout)["version"]
    assert sluice("--version", cwd=tmp_path).stdout == sluice("version", cwd=tmp_path).stdout == f"sluice {version}\n"


def test_a_source_that_is_away_is_5_and_its_password_is_not_shown(configured: Path, sluice: Sluice) -> None:
    result = sluice("setup", "--json", cwd=configured)
    assert result.returncode == 5
    assert json.loads(result.stdout)["error"]["class"] == "SourceUnavailable"
    assert CANARY not in result.stdout + result.stderr


def test_targets_of_run_exclude_each_other_and_must_be_lsns(configured: Path, sluice: Sluice) -> None:
    assert sluice("run", "--until-caught-up", "--until-lsn", "0/1", cwd=configured).returncode == 2
    result = sluice("run", "--until-lsn", "12", cwd=configured)
    assert (result.returncode, "not an LSN" in result.stderr) == (2, True)


def test_apply_hands_every_option_to_the_applier_and_none_on_the_command_line(configured: Path) -> None:
    settings = load(str(configured / "sluice.yaml"), environ={}).settings
    handed = ApplyOptions.from_json(wiring.apply_options(settings, log_format="json", once=True))
    assert handed.once
    assert handed.spool_options == {"aws_secret_access_key": CANARY}
    assert handed.lake_options == handed.spool_options, "both are on one kind of store and the lake has none of its own"
    assert handed.spark_conf == {"spark.x": CANARY}
    assert handed.driver_memory == "1024m"
    assert handed.targets_of("public.events") == (LakeTarget("changelog"),)
    assert CANARY not in " ".join(wiring.applier_command())


def test_status_and_tables_work_while_nothing_runs_and_name_what_they_could_not_reach(
    configured: Path, sluice: Sluice
) -> None:
    store, log = begun(configured)
    log.append(table("16384", "orders", "snapshot"))
    applied = row("orders", table_id="16384", path="public/orders", **APPLIED)
    store.create(keys.apply_log(1), AppliedLog(1, "a", AT, {"16384": applied}).encode())
    store.create(keys.apply_complete(1), Complete(1, 100, 2, AT, {"public.orders": 3}).encode())
    result = sluice("status", "--json", cwd=configured)
    assert result.returncode == 12
    status = json.loads(result.stdout)
    assert (status["schema_version"], status["state"], status["manifest"]["through_lsn"]) == (1, "unknown", "0/64")
    assert "server.unreachable" in [problem["code"] for problem in status["problems"]]
    assert CANARY not in result.stdout + result.stderr
    (listed,) = json.loads(sluice("tables", "--json", cwd=configured).stdout)["tables"]
    assert (listed["schema"], listed["table"], listed["state"]) == ("public", "orders", "snapshot")
    assert (listed["complete_through_lsn"], listed["rows_applied"]) == ("0/64", 7)
    assert listed["path"] == f"file://{configured}/lake/public/orders"
    people = sluice("status", cwd=configured)
    assert people.returncode == 12
    assert "server.unreachable  the source" in people.stdout
    assert "public.orders" in sluice("tables", cwd=configured).stdout


def test_the_spool_is_listed_and_proven_whole_or_not(configured: Path, sluice: Sluice) -> None:
    store, log = begun(configured)
    log.append(manifests.table("7"))
    put(log, manifests.changes(120, 140), through_lsn=140)
    listed = json.loads(sluice("spool", "ls", "--last", "2", "--json", cwd=configured).stdout)["entries"]
    assert [(row["kind"], row["through_lsn"], row["transactions"], row["files"], row["rows"]) for row in listed] == [
        ("table", "0/64", None, None, None),
        ("changes", "0/8C", 2, 1, 3),
    ]
    assert "public.t7" in sluice("spool", "ls", cwd=configured).stdout
    broken = sluice("spool", "verify", "--json", cwd=configured)
    assert broken.returncode == 4
    (flaw,) = json.loads(broken.stdout)["flaws"]
    assert (flaw["seq"], flaw["what"]) == (3, "is missing")
    store.put(flaw["key"], bytes(100))
    assert sluice("spool", "verify", cwd=configured).returncode == 0
    different = sluice("spool", "verify", "--content", cwd=configured)
    assert different.returncode == 4
    assert "does not have the content" in different.stdout


@pytest.mark.parametrize("name", ["Bad-Name", "", "x" * 51, "../up"])
def test_init_refuses_a_name_that_no_pipeline_may_have(name: str, tmp_path: Path, sluice: Sluice) -> None:
    result = sluice("init", str(tmp_path / "shop"), "--pipeline", name)
    assert (result.returncode, "a-z, 0-9 and _" in result.stderr) == (2, True)
    assert not (tmp_path / "shop").exists()


def test_what_is_piped_has_every_column_whole(configured: Path, sluice: Sluice) -> None:
    store, log = begun(configured)
    name, reason = "t" * 63, "because " * 40 + "of this"
    log.append(Table("16384", "s" * 63, name, State.STALE, 1, because(reason)))
    applied = row(name, table_id="16384", schema_name="s" * 63, **APPLIED)
    store.create(keys.apply_log(1), AppliedLog(1, "a", AT, {"16384": applied}).encode())
    for command in ("status", "tables"):
        said = sluice(command, cwd=configured).stdout
        (shown,) = [line for line in said.splitlines() if line.startswith("s" * 63 + "." + name)]
        assert reason in shown, command
        assert "0/64" in shown, command
        assert "complete through" in said, command


def test_that_nobody_compares_continuously_any_more_is_said_alone(configured: Path, sluice: Sluice) -> None:
    store = open_store(f"file://{configured}/spool", prefix="shop/", options={})
    record = Record(store, every_seconds=3600.0)
    record.begin()
    for more in ("--repair", "--continuous", "public.orders"):
        assert sluice("verify", "--continuous-ended", more, cwd=configured).returncode == 2
    assert record.read().every_seconds == 3600.0
    assert sluice("verify", "--continuous-ended", cwd=configured).returncode == 0
    assert (record.read().every_seconds, record.read().since) == (0.0, "")


@pytest.mark.parametrize(
    "words", cases(["drop", "recreate", "recreate --upgraded", "advance --to 0/1"], quick=["drop", "advance --to 0/1"])
)
def test_a_question_that_nobody_answers_is_a_usage_error_and_no_interrupt(configured: Path, words: str) -> None:
    done = commands.sluice("slot", *words.split(), cwd=configured, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, "nothing was done" in done.stderr) == (2, "", True), done.stderr
    assert "--confirm" in done.stderr


def test_a_pipeline_without_tables_is_not_called_equal(sluice: Sluice, configured: Path) -> None:
    ended = sluice("verify", cwd=configured)
    assert ended.returncode == 2
    assert "no table yet" in ended.stderr


def test_a_table_that_is_not_carried_is_refused_with_the_nearest_name(sluice: Sluice, configured: Path) -> None:
    _, log = begun(configured)
    log.append(table("1", "orders", state=State.SNAPSHOT))
    ended = sluice("verify", "public.order", cwd=configured)
    assert ended.returncode == 2
    assert "nearest: public.orders" in ended.stderr


def test_the_lake_table_that_is_stale_is_named_when_its_source_table_is_to_be_repaired(
    sluice: Sluice, configured: Path
) -> None:
    file = configured / "sluice.yaml"
    targets = "public.orders: {targets: [{kind: mirror}, {kind: history, name: orders_h}]}"
    file.write_text(file.read_text().replace("tables: {", f"tables: {{{targets}, "))
    store, log = begun(configured)
    log.append(table("1", "orders", state=State.LIVE))
    why = Reason(ReasonCode.LAKE_DIFFERS, {"what": "changed"})
    stale = AppliedTable("1", "public", "orders", "public/orders_h", "history", 1, State.STALE, why, target="orders_h")
    log_of_one = AppliedLog(1, "one", AT, {keys.target_key("1", "orders_h"): stale})
    store.create(keys.apply_log(1), log_of_one.encode())
    ended = sluice("verify", "--repair", "public.orders", cwd=configured)
    assert ended.returncode == 2
    assert "public.orders/orders_h is stale and cannot be repaired" in ended.stderr
    assert "`sluice resync public.orders` reads the whole table again; or name only lake tables" in ended.stderr


POSITION = ("wait", "--lsn", "0/A")


@contextmanager
def soon(happens: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(0.5, happens)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_lake_without_a_directory_is_waited_for_and_missing_only_in_time(configured: Path, sluice: Sluice) -> None:
    ended = sluice(*POSITION, "--timeout", "300ms", cwd=configured)
    assert (ended.returncode, ended.stdout) == (75, "")
    assert "there is no directory" in ended.stderr


def test_a_lake_that_comes_meanwhile_is_read(configured: Path, sluice: Sluice) -> None:
    store, _ = begun(configured)
    with soon(lambda: publish(configured / "lake", 1, 10, manifest=identity(store))):
        ended = sluice(*POSITION, "--timeout", "20s", cwd=configured)
    assert ended.returncode == 0, ended.stderr
    assert "the lake can be read as of 0/A" in ended.stdout


def test_the_time_that_was_given_is_named_also_where_part_of_it_passed_without_a_lake(
    configured: Path, sluice: Sluice
) -> None:
    with soon((configured / "lake").mkdir):
        ended = sluice(*POSITION, "--timeout", "2s", cwd=configured)
    assert ended.returncode == 75
    assert "within 2 s: it is at no boundary yet" in ended.stderr
