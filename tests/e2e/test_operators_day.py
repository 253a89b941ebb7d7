"""A day as an operator: the wheel in an environment of its own, one pipeline of thirteen tables under load, and every
command and option as a user gives them, in a pipe and on a terminal, in every form of answer. `make test` has
its beginning alone: the installation and some commands before the first start.

What tests of the pure core replace, and which part of the day crosses it for real:

| replaced in tests/unit | crossed by |
|---|---|
| the process: commands are called in this one (cli/conftest) | every case: the installed command, code and outputs |
| the terminal: a recording console (cli/test_status) | `typed`: a terminal of 24 lines and 100 columns |
| signals: a raised KeyboardInterrupt (cli/test_exits) | Ctrl-C in `status --watch`, `drain` and `up` |
| the store: memory (manifest, operate, cli/test_spool) | a local folder, and S3 in the long part |
| the server: facts as values (health/test_verdict, source/test_credentials) | PostgreSQL, two servers, a lost slot |
| the slot's probe (health/test_source_watch) | `status` and `up` look at the slot themselves |
| Spark: plans as values (applier/...) | `up`, `apply --once`, `verify` |
| the clock (applier/progress, health/test_lag_history) | the first start: nothing is degraded while Spark begins |
| limits made small (spool_upkeep, segment, tuples, key_cache) | 200,000 rows, 222 columns, values of 300 kB |
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.store.opening import open_store
from tests.e2e.operators import cases
from tests.e2e.operators.cases import CASES, LOST, NEW, RUNNING, STOPPED, Case
from tests.e2e.operators.installation import COLUMNS, LINES, Ended, Installation
from tests.e2e.operators.source import SCHEMA, TABLES, Load
from tests.support.compare import assert_equal
from tests.support.extent import FULL, slow
from tests.support.pipeline import QUICK_JAVA
from tests.support.sources import Bucket, Database, fresh_database
from tools.local.guard import Guard
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.s3 import S3Server

pytestmark = pytest.mark.timeout(5400 if FULL else 1800)
"""The day is one process after the other: on a machine with other work it takes minutes."""
_START_SECONDS = 900.0
_FORMS = (("-o", "yaml"), ("--json",), ("--output=json",))
"""The first is made from the second, so that it alone shows both."""


class Day:
    """One pipeline, its source and the installation, from morning to evening."""

    def __init__(self, folder: Path, database: Database, bucket: Bucket | None) -> None:
        self.folder, self.database = folder, database
        self.installed = Installation(folder)
        self.config = folder / "sluice.yaml"
        (folder / "empty").mkdir()
        locked = folder / "locked"
        locked.mkdir()
        locked.chmod(0o500)
        place = bucket.uri if bucket is not None else folder.as_uri()
        options = bucket.options if bucket is not None else {}
        self.spool_uri, self.lake_uri, self.options = f"{place}/spool", f"{place}/lake", options
        settings: dict[str, Any] = {
            "version": 1,
            "pipeline": "shop",
            "source": {"dsn": database.dsn, "slot": database.slot, "publication": database.publication},
            "spool": {"uri": self.spool_uri, "options": options, "max_delay": "200ms"},
            "lake": {"uri": self.lake_uri, "options": options},
            "apply": {"poll": "200ms", "conf": {} if FULL else QUICK_JAVA},
            "telemetry": {"listen": f"127.0.0.1:{free_port()}", "apply_listen": f"127.0.0.1:{free_port()}"},
        }
        settings["source"]["tables"] = ["public.*"]
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self.log = folder / "up.log"
        self.formed: set[tuple[str, tuple[str, ...]]] = set()
        """Moments and commands whose forms were asked."""
        self.states: list[str] = []
        """What the pipeline was while it started."""

    def line(self, case: Case) -> list[str]:
        words = case.words(
            folder=str(self.folder),
            lake=self.lake_uri,
            lsn=self.manifest_lsn() if "{lsn}" in case.line else "",
            slot=self.database.slot,
            entry="3",
            segment=self.segment() if "{segment}" in case.line else "",
        )
        return [*words, *(("-c", str(self.config)) if case.configured else ())]

    def manifest_lsn(self) -> str:
        shown = self.installed.piped("slot", "show", "--json", "-c", str(self.config))
        return str(json.loads(shown.out)["manifest_through_lsn"] or "0/1")

    def segment(self) -> str:
        """The key of the oldest one."""
        return next(iter(open_store(self.spool_uri, prefix="shop/", options=self.options).list("data/")))

    def answer(self, *words: str) -> dict[str, Any]:
        done = self.installed.piped("-c", str(self.config), *words, "--json")
        found: dict[str, Any] = json.loads(done.out)
        return found

    def up(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.installed.command("-c", str(self.config), "up", "--log-format", "json"),
                cwd=self.installed.home,
                env=self.installed.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.guard = Guard(-process.pid, signal.SIGKILL)
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Whatever the day came to: no process stays."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(120)
        self.guard.dismiss()

    def wait_live(self, process: "subprocess.Popen[bytes]", *, names: tuple[str, ...] = TABLES) -> None:
        deadline = time.monotonic() + _START_SECONDS
        states: dict[str, str] = {}
        while any(states.get(name) != "live" for name in names):
            assert process.poll() is None, f"up ended with {process.poll()}:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"not live: {states}\n{self.log.read_text()[-3000:]}"
            report = self.answer("status")
            self.states.append(report["state"])
            states = {one["table"]: one["state"] for one in report["tables"]}


@pytest.fixture(scope="module", params=["a local folder", pytest.param("S3", marks=slow)])
def day(request: pytest.FixtureRequest, postgres: PostgresServer, s3_server: S3Server) -> Iterator[Day]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="day-")))
        folder.chmod(0o755)
        database = stack.enter_context(fresh_database(postgres))
        bucket = None
        if request.param == "S3":
            bucket = Bucket(s3_server, f"day-{os.getpid()}")
            s3_server.create_bucket(bucket.name)
        database.execute(*SCHEMA)
        yield Day(folder, database, bucket)


def _given(day: Day, when: str) -> None:
    """Every case of one moment, each in every form. All that is wrong is said together."""
    wrong: list[str] = []
    for case in CASES:
        if case.when == when and (FULL or not case.slow):
            began = time.monotonic()
            wrong += _one(day, case)
            print(f"{time.monotonic() - began:6.1f} s  {case.id}", flush=True)
    assert not wrong, "\n".join(wrong)


def _one(day: Day, case: Case) -> list[str]:
    """Questions are asked in all their forms side by side: a command that changes something has one. No form depends
    on where the lake is.
    """
    words, says = day.line(case), case.says.format(slot=day.database.slot)
    forms = _FORMS if FULL and not day.options else _FORMS[:1]
    first = FULL or (case.when, cases.command_of(words)) not in day.formed
    asked = forms if case.forms and first and cases.can_answer_in_json(words) else ()
    day.formed |= {(case.when, cases.command_of(words))} if asked else set()
    with ThreadPoolExecutor(2) as pool:
        shown = pool.submit(day.installed.piped, *words)
        answers = {form: pool.submit(day.installed.piped, *words, *form) for form in asked}
    wrong, documents = [*_judged(case, shown.result(), says)], []
    for form, answer in answers.items():
        done = answer.result()
        if done.code not in case.codes:
            wrong.append(f"{case.id} {form}: ended with {done.code}: {done.err[-500:]}")
        try:
            documents.append(yaml.safe_load(done.out) if "yaml" in form[-1] else json.loads(done.out))
        except (ValueError, yaml.YAMLError) as error:
            wrong.append(f"{case.id} {form}: no document: {error}: {done.out[-300:]} {done.err[-500:]}")
    wrong += [f"{case.id}: forms have other keys" for one in documents if set(one) != set(documents[0])]
    return wrong + [f"{case.id}: no schema_version" for one in documents if one.get("schema_version") != 1]


def _judged(case: Case, ended: Ended, says: str) -> Iterator[str]:
    said = ended.out + ended.err
    if ended.code not in case.codes:
        yield f"{case.id}: ended with {ended.code}, not {case.codes}: {said[-800:]}"
    if says not in said:
        yield f"{case.id}: {says!r} is not said: {said[-800:]}"
    if "Traceback" in said or "unexpected" in ended.err:
        yield f"{case.id}: {said[-800:]}"


def test_every_command_and_option_has_a_case() -> None:
    assert cases.missing() == []


def test_every_documented_call_has_a_case() -> None:
    assert cases.undocumented_calls() == []


def test_the_installed_command_is_the_wheels_and_sees_no_checkout(day: Day) -> None:
    program = "import sluice, sluice_spark, sys; print(sluice.__file__, sluice_spark.__file__, *sys.path, sep='\\n')"
    ours, spark, *path = day.installed.run(day.installed.python, "-c", program).out.splitlines()
    assert str(day.folder) in ours
    assert str(day.folder) in spark
    checkout = Path(__file__).parents[2]
    assert not {str(checkout), str(checkout / "service"), str(checkout / "spark_jobs")} & set(path)


def test_commands_before_the_first_start(day: Day) -> None:
    _given(day, NEW)
    place = f"{day.folder}/missing/fix.sql"
    missing = day.installed.piped("check", "--sql-out", place, "--json", "-c", str(day.config))
    assert (missing.code, json.loads(missing.out)["schema_version"]) == (2, 1), "the answer is not lost with the file"


@slow
def test_a_closed_pipe_is_no_failure_whatever_was_written_to_it(day: Day) -> None:
    config = ("-c", str(day.config))
    asked = (
        ("--help",),
        ("status", "--help"),
        ("version",),
        ("config", "show", *config),
        ("config", "show", "-o", "yaml", *config),
        ("config", "schema"),
        ("status", *config),
        ("check", "--object-store", *config),
    )
    given = asked if FULL else asked[::3]
    assert {words: day.installed.closed(*words) for words in given} == dict.fromkeys(given, 141)
    assert day.installed.closed("status", "--colour", stderr=True) == 141


@slow
def test_options_of_all_commands_may_stand_before_and_behind_the_command(day: Day) -> None:
    config = str(day.config)
    for words in (
        ("-c", config, "-q", "config", "validate"),
        ("config", "-c", config, "validate", "-v"),
        ("-c", "no.yaml", "config", "validate", "-c", config),
        ("--config", config, "--no-color", "--log-format", "json", "tables"),
        ("slot", "-c", config, "show"),
        ("spool", "-c", config, "ls"),
    ):
        ended = day.installed.piped(*words)
        assert ended.code == 0, (words, ended)
    refused = day.installed.piped("-c", "no.yaml", "config", "validate")
    assert (refused.code, "no.yaml" in refused.err) == (2, True)


def test_the_variables_of_init_are_loaded_as_their_file_says(day: Day) -> None:
    shop = day.folder / "shop"
    text = (shop / ".env.example").read_text()
    example = "postgresql://sluice:change-me@127.0.0.1:5432/postgres"
    (shop / ".env").write_text(text.replace(example, "postgresql://me@h/db"))
    loading = next(line.lstrip("# ") for line in text.splitlines() if "set -a" in line)
    done = day.installed.run("sh", "-c", f"cd {shop} && {loading} && sluice config show --json")
    assert json.loads(done.out)["settings"]["source.dsn"]["origin"] == "env SLUICE_SOURCE__DSN", done.err


@slow
def test_commands_while_it_runs_under_load(day: Day) -> None:
    process = day.up()
    try:
        load = Load(day.database)
        with load.going_on():
            day.wait_live(process)
            assert "degraded" not in day.states, "a pipeline that begins is not degraded"
            _on_a_terminal(day)
            _given(day, RUNNING)
            day.wait_live(process)
        assert load.changes > 0
        drained = day.installed.piped("drain", "--timeout", "10m", "-c", str(day.config))
        assert drained.code == 0, drained.err[-1000:]
        _equal(day)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(120) == 0, day.log.read_text()[-2000:]
    finally:
        day.end(process)


def _on_a_terminal(day: Day) -> None:
    typed, config = day.installed.typed, ("-c", str(day.config))
    watched = typed(
        "status", "--watch", "--interval", "0.3", *config, interrupt=lambda seen: seen.count("Pipeline") > 2
    )
    assert watched.code == 130, watched.out[-500:]
    # On a busy machine, a store that answers late is a frame of its own.
    first = next(frame for frame in watched.out.split("\x1b[2K") if "Pipeline" in frame)
    assert first.count("\n") < LINES, "a frame that is longer than the terminal loses its head"
    assert "WAL" in first
    waited = typed("drain", "--to-lsn", "FF/0", *config, interrupt=lambda seen: len(seen) > 0)
    assert waited.code == 130, waited.out[-500:]
    shown = typed("tables", "--no-color", *config)
    assert shown.code == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.out).splitlines()
    assert max(map(len, lines)) <= COLUMNS, "a table is as wide as the terminal"
    refused = typed("slot", "drop", *config, given="another\n")
    assert (refused.code, "nothing was done" in refused.out) == (2, True)
    asked = typed("slot", "drop", *config, interrupt=lambda seen: "Type the slot" in seen, again=True)
    assert asked.code == 130
    completed = day.installed.piped(
        env={
            "_SLUICE_COMPLETE": "bash_complete",
            "COMP_WORDS": "sluice resync public.mo",
            "COMP_CWORD": "2",
            "SLUICE_CONFIG": str(day.config),
        }
    )
    assert "public.moods" in completed.out


def _equal(day: Day) -> None:
    paths = {one["table"]: one["path"] for one in day.answer("tables")["tables"]}
    assert set(TABLES) <= set(paths)
    assert_equal(day.database, TABLES, lake_uri=day.lake_uri, storage_options=_delta(day.options))


def _delta(options: dict[str, str]) -> dict[str, str] | None:
    if not options:
        return None
    return {f"AWS_{name.upper()}": value for name, value in options.items()} | {"AWS_ENDPOINT_URL": options["endpoint"]}


@slow
def test_commands_after_a_stop(day: Day) -> None:
    _given(day, STOPPED)


@slow
def test_a_spool_is_copied_and_restored_by_the_documented_steps(day: Day) -> None:
    """docs/operations/backup.md, on a local folder."""
    if day.spool_uri.startswith("s3:"):
        pytest.skip("the steps copy a folder")
    own, copied = day.folder / "spool" / "shop", day.folder / "copy" / "shop"
    first = [name for name in ("data", "stage", "repair", "manifest", "archive") if (own / name).exists()]
    rest = sorted({path.name for path in own.iterdir()} - set(first))
    for name in [*first, *rest]:
        shutil.copytree(own / name, copied / name)
    asked = ("spool", "verify", "--content", "-c", str(day.config))
    there = {"SLUICE_SPOOL__URI": (day.folder / "copy").as_uri()}
    whole = day.installed.piped(*asked, env=there)
    assert (whole.code, "hashes" in whole.out) == (0, True), whole
    lost = own / day.segment()
    lost.unlink()
    damaged = day.installed.piped(*asked)
    assert (damaged.code, f"{lost.relative_to(own)}: is missing" in damaged.out + damaged.err) == (4, True), damaged
    shutil.copy2(copied / lost.relative_to(own), lost)
    assert day.installed.piped(*asked).code == 0


@slow
def test_no_command_touches_a_slot_of_another_server(day: Day) -> None:
    """Of the same name, under the configuration of this pipeline and with its slot's name typed."""
    with temporary_server() as other:
        with closing(other.superuser()) as admin:
            admin.execute(f"CREATE DATABASE {day.database.name}".encode())
        with closing(other.superuser(day.database.name)) as there:
            there.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (day.database.slot,))
            before = there.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall()
            dsn = {"SLUICE_SOURCE__DSN": other.dsn(dbname=day.database.name)}
            lsn, config = day.manifest_lsn(), ("-c", str(day.config))
            commands = (
                ("slot", "drop", "--confirm", day.database.slot),
                ("setup",),
                ("slot", "advance", "--to", lsn, "--confirm", day.database.slot),
                ("slot", "recreate", "--confirm", day.database.slot),
                ("run", "--until-caught-up"),
                ("tables", "add", "--apply", "public.scratch"),
                ("tables", "remove", "--apply", "public.scratch"),
                ("plan", "--sql", "DROP TABLE scratch"),
            )
            for words in commands if FULL else commands[:2]:
                ended = day.installed.piped(*words, *config, env=dsn)
                assert (ended.code, "WRONG_CLUSTER" in ended.err) == (7, True), (words, ended)
            assert there.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall() == before


@slow
def test_commands_after_the_slot_was_lost(day: Day) -> None:
    config = ("-c", str(day.config))
    dropped = day.installed.typed("slot", "drop", *config, given=f"{day.database.slot}\n")
    assert dropped.code == 0, dropped.out[-500:]
    day.database.execute("UPDATE ints SET v = 'while nobody looked' WHERE id < 10")
    _given(day, LOST)


@slow
def test_gaps_are_closed_by_the_documented_steps(day: Day) -> None:
    process = day.up()
    try:
        repaired = day.installed.piped("verify", "--repair", "-c", str(day.config))
        assert repaired.code == 0, repaired.err[-2000:]
        day.wait_live(process)
        continuous = day.installed.typed(
            *("verify", "--continuous", "--interval", "1h", "-c", str(day.config)), interrupt=lambda seen: len(seen) > 0
        )
        assert continuous.code == 130
        _equal(day)
    finally:
        day.end(process)
