"""`check`: everything that would keep the pipeline from running, or harm the source, before it
does.

Invariant: changes nothing but a few tiny objects of its own below the spool and the lake, which it
removes. What an installation cannot look at is said.
"""

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from sluice.cli import deadline, findings_view, output, policies, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.status import look, verdict_of
from sluice.errors import (
    FormatTooNew,
    ManifestCorrupt,
    PreflightFailed,
    SlotLost,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from sluice.findings import SEVERITIES, Finding, Severity
from sluice.health.verdict import Verdict
from sluice.manifest.values import TableState
from sluice.printable import counted
from sluice.settings import Settings
from sluice.settings.values import show_retention

_STORE_SECONDS, _LAKE_SECONDS = 30.0, 300
_LOOKED_AT = ("server.unreachable", "slot.unreserved", "slot.headroom", "spool.away")
"""Problems that the looks at source and store have findings of their own for."""
_CURED_BY_RUNNING = ("ingest", "applier", "lake")
"""Parts whose problems are no reason against starting the pipeline."""


@dataclass
class _Report:
    """What was found so far. `calls` are those of the store's conformance, as (name, outcome,
    seen); `verdict` is that on the pipeline as it is.
    """

    found: list[Finding] = field(default_factory=list)
    not_examined: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    verdict: Verdict | None = None

    @property
    def store_answers(self) -> bool:
        """One that does not is asked once."""
        return all(finding.code != "store.reach" for finding in self.found)


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--sql-out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the SQL that fixes the findings to this file.",
)
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@click.option(
    "--object-store",
    "store_alone",
    is_flag=True,
    help="Try only the calls that the spool's object store must answer: five on a local folder, thirteen elsewhere.",
)
@common
def check(invocation: Invocation, json_wanted: bool, sql_out: Path | None, strict: bool, store_alone: bool) -> int:  # noqa: FBT001 - a command's parameters
    """Check for anything that would keep the pipeline from running, or harm the source. It changes
    nothing.

    It checks the settings of the server, the privileges, the slot, the publication and every table,
    and reads one row of each table. It says how long an outage the limit on retained WAL allows. It
    checks whether the object store does what the manifest needs. Where Spark is installed, it also
    checks Java, the versions, the jars and the lake. Each finding has the SQL or the setting that
    fixes it. If the pipeline has run before, `check` compares its slot with the manifest as `run`
    does, and shows its problems. The exit code is 3 if a finding is critical, and 7 if the slot is
    lost. docs/findings.md lists all codes.

    \b
    Examples:
      sluice check
      sluice check --strict --sql-out fix.sql
      sluice check --object-store
    """
    wiring.require("obstore", *(() if store_alone else ("numpy", "pyarrow")))
    settings = invocation.settings().settings
    report = _Report()
    _examine_store(settings, report)
    if not store_alone:
        tables = _examine_source(settings, report)
        _examine_pipeline(settings, report)
        _examine_retention(settings, report)
        _examine_lake(settings, tables, report)
    found = findings_view.ordered(report.found)
    if json_wanted:
        unseen = [{"what": what, "how": how} for what, how in report.not_examined]
        calls = [{"call": name, "outcome": outcome, "seen": seen} for name, outcome, seen in report.calls]
        state = report.verdict.state if report.verdict is not None else None
        document: dict[str, Any] = {
            "state": state,
            "findings": [asdict(finding) for finding in found],
            "not_examined": unseen,
            "object_store": calls,
        }
        output.as_json({"schema_version": 1, **document})
    else:
        if store_alone:
            invocation.console().print(output.table("", ("call", "", ""), report.calls))
        findings_view.show(invocation.console(), found, report.not_examined)
        if report.verdict is not None:
            click.echo(f"pipeline {settings.pipeline} is {report.verdict.headline}")
    if sql_out is not None:
        output.to_file(sql_out, findings_view.script(found, pipeline=settings.pipeline))
    counts = {severity: sum(finding.severity == severity for finding in found) for severity in SEVERITIES}
    if report.verdict is not None and report.verdict.state == "lost":
        click.echo("error: the slot of the pipeline is lost: `run` would end with 7 as well", err=True)
        return SlotLost.exit_code
    if counts["critical"] or (strict and counts["warning"]):
        raise PreflightFailed(
            f"{counted(counts['critical'], 'critical finding')}, {counted(counts['warning'], 'warning')}",
            hint="fix them and run `sluice check` again",
        )
    click.echo(f"ready: nothing critical, {counted(counts['warning'], 'warning')}", err=True)
    return 0


def _examine_store(settings: Settings, report: _Report) -> None:
    from sluice.store.conformance import examine

    options = {name: value.get_secret_value() for name, value in settings.spool.options.items()}
    spool = wiring.open_spool(settings)
    try:
        seen = deadline.within(_STORE_SECONDS, lambda: examine(spool, options=options))
    except StoreUnavailable as error:
        report.found.append(Finding("critical", "store.reach", spool.describe(), str(error), fix_setting=error.hint))
        return
    report.found += seen.findings
    report.not_examined += seen.not_examined
    report.calls += [(call.name, call.outcome, call.seen) for call in seen.calls]


def _examine_source(settings: Settings, report: _Report) -> list[tuple[str, str]]:
    """The tables that the pipeline would carry, as far as they are known."""
    if find_spec("psycopg") is None:
        report.not_examined.append(
            ("the source", "run `sluice check` where ingest runs: this installation has no psycopg")
        )
        return []
    from sluice.manifest.reader import load_state
    from sluice.operate.check.preflight import run_preflight

    known: Collection[TableState] = ()
    with suppress(StoreError, ManifestCorrupt, FormatTooNew):  # said by those who look at store and pipeline
        if report.store_answers:
            known = load_state(wiring.open_spool(settings)).tables.values()
    seen = run_preflight(
        wiring.source_options(settings),
        settings.source.tables,
        two_phase=settings.source.two_phase,
        load_limits=wiring.limits_to_see(settings),
        sessions=wiring.ingest_options(settings, instance="").query_sessions,
        known=known,
        layout=policies.layout(settings),
        policies=policies.policies(settings),
        metadata=settings.lake.metadata_columns,
    )
    report.found += seen.findings
    return seen.tables or []


def _examine_pipeline(settings: Settings, report: _Report) -> None:
    """The verdict on the pipeline, as findings. Whether the source and the store answer was looked
    at before.
    """
    if find_spec("psycopg") is None:
        return
    report.verdict = verdict = verdict_of(look(wiring.reporter(settings)))
    if verdict.state != "new":
        # Only a new pipeline's slot is still to be created.
        report.found = [finding for finding in report.found if finding.code != "slot.missing"]
    for problem in verdict.problems:
        seen = f"{problem.message} [{problem.code}]"
        if problem.code == "slot.lost":
            report.found.append(
                Finding("critical", "pipeline.lost", problem.where, problem.message, fix_setting=problem.remedy)
            )
        elif problem.code not in _LOOKED_AT:
            severity: Severity = "info" if problem.part in _CURED_BY_RUNNING else problem.severity
            report.found.append(Finding(severity, "pipeline.problem", problem.where, seen, fix_setting=problem.remedy))


def _examine_retention(settings: Settings, report: _Report) -> None:
    """What a retention would delete, before it is in force."""
    from sluice.manifest import pruning

    if not report.store_answers:
        return
    try:
        plan = pruning.plan(wiring.open_spool(settings), keep_seconds=settings.spool.retention, leftovers=False)
    except (StoreError, ManifestCorrupt, FormatTooNew):
        return  # said by those who look at store and pipeline
    if plan.objects:
        shown = show_retention(settings.spool.retention)
        seen = (
            f"with spool.retention {shown}, the applier deletes {counted(len(plan.objects), 'object')} "
            f"({output.amount(plan.bytes)}) that are applied, of entries through {plan.through_seq}; a lake table "
            "that is lost afterwards is read from the source again, and the past of a changelog is not there any more"
        )
        report.found.append(Finding("info", "spool.retention", "spool.retention", seen))


def _examine_lake(settings: Settings, tables: Sequence[tuple[str, str]], report: _Report) -> None:
    """In a process of its own: this side never imports Spark. Starting Spark itself would take its
    many seconds and show little more.
    """
    if find_spec("pyspark") is None:
        report.not_examined.append(
            ("Java, Spark and the lake", "run `sluice check` where the applier runs: this installation has no pyspark")
        )
        return
    environment = wiring.applier_environment(wiring.apply_options(settings, log_format="console"), dict(os.environ))
    layout = policies.layout(settings)
    # It asks the spool as well.
    seconds = _LAKE_SECONDS if report.store_answers else _STORE_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            wiring.lake_check_command(),
            input=json.dumps([(*table, name, path) for table in tables for name, path in layout.paths(*table).items()]),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        seen = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        report.not_examined.append(
            (
                "Java, Spark and the lake",
                f"checking them took more than {seconds:.0f} s: are the stores of lake and spool reachable?",
            )
        )
        return
    except ValueError:
        raise UsageError(
            f"the check of the lake ended with status {done.returncode}",
            hint="`python -m sluice_spark.preflight` says why",
        ) from None
    report.found += [Finding(**finding) for finding in seen["findings"]]
    report.not_examined += [(what, how) for what, how in seen["not_examined"]]
