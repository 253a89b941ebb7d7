"""`verify`: does the lake equal the source?"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sluice.cli import config_reload, output, policies, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.times import Seconds, duration
from sluice.contract.verified import DIFFERENT, NOT_COMPARED
from sluice.errors import ApplyError, UsageError, VerificationFailed
from sluice.lsn import show
from sluice.printable import counted, one_line

if TYPE_CHECKING:
    from sluice.contract.row_form import Row
    from sluice.manifest.values import TableState
    from sluice.operate.compare.comparing import Comparison
    from sluice.settings import Settings

SHORTEST_SECONDS = 60.0
"""Of --interval: a comparison takes a replication slot and a snapshot each time."""


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", shell_complete=table_names.completed)
@click.option(
    "--repair",
    "repair_wanted",
    is_flag=True,
    help="Have ingest read again the rows that differ, and then compare again.",
)
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--max-load",
    default=100,
    show_default=True,
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    help="The share of time in which the connection to the source may be busy.",
)
@click.option(
    "--wait",
    "wait_seconds",
    default=60.0,
    show_default=True,
    type=Seconds(0, 86_400),
    metavar="SECONDS",
    help="How long to wait for ingest to reach the position of the snapshot, and for the applier to commit a repair.",
)
@click.option(
    "--keys",
    "shown",
    default=20,
    show_default=True,
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    help="How many differing keys to name for each table.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Do not end: compare the tables one after the other, and each of them once per --interval.",
)
@click.option(
    "--interval",
    "every_seconds",
    default="1d",
    show_default=True,
    callback=duration(least=SHORTEST_SECONDS),
    metavar="DURATION",
    help="How often each table is compared with --continuous; at least 60s.",
)
@click.option(
    "--continuous-ended",
    "ended",
    is_flag=True,
    help="Compare nothing, and record that continuous comparison is no longer expected.",
)
@common
def verify(
    invocation: Invocation,
    tables: tuple[str, ...],
    repair_wanted: bool,  # noqa: FBT001 - a command's parameter
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
    max_load: int,
    wait_seconds: float,
    shown: int,
    continuous: bool,  # noqa: FBT001 - a command's parameter
    every_seconds: float,
    ended: bool,  # noqa: FBT001 - a command's parameter
) -> int:
    """Compare tables of the lake with the source, row by row at one position of both. The exit code
    is 4 if they differ.

    The server hashes every row of a table as of a snapshot, in ranges of its keys. Spark hashes the
    lake table as of the same position. `verify` lists the ranges that differ and names the keys of
    the rows that differ. It never shows other values. Ingest must run, and the server must have a
    free replication slot; the applier may run. A table that cannot be compared, or whose shape
    keeps changing, is reported as `not compared`, with the reason. The exit code is then 75 if the
    reason is temporary, and 2 if you named such a table.

    With --repair, ingest reads again exactly the rows that differ, at a known position, and writes
    them to the spool in order with all changes. The applier commits them. `verify` then compares
    the tables again and reports the second result. Gaps that a lost slot left are closed first; see
    `sluice slot recreate`. A stale table cannot be repaired: if you name one, the exit code is 2
    and the command advises `sluice resync`.

    With --continuous, the command compares until it is stopped. Set --max-load as well: one
    connection reads the source, and --max-load makes it pause after each range of a table. The
    spool records when each table was last found equal, and through which position. `sluice tables
    --json`, /status and the metrics show both. A difference is a critical problem. If a table was
    not found equal for three intervals, Sluice warns, even if nothing compares it any longer. If
    you no longer want to compare continuously, run `verify` with --continuous-ended. The command
    follows changes of `tables` in the configuration, such as a new target; for other settings,
    restart it.

    \b
    Examples:
      sluice verify
      sluice verify public.orders --max-load 25
      sluice verify --repair
      sluice verify -o json --keys 1000
      sluice verify --continuous --interval 6h --max-load 10
    """
    if ended:
        return _ended(invocation, alone=not (tables or repair_wanted or continuous))
    wiring.require("psycopg", "obstore", "pyspark")
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    from sluice.operate.compare.verify import Run
    from sluice.process.lake_reader import LakeReader, LakeReaderProcess

    if continuous and tables:
        raise UsageError("--continuous compares every table", hint="leave the names out")
    # It may run for ever: passwords and keys are replaced meanwhile, tables get targets and rules.
    store = wiring.open_spool(settings, reread=config_reload.spool_options(invocation, settings))
    log_format = wiring.applier_log_format(settings, asked=invocation.log_format)
    source = wiring.source_options(settings, reread_dsn=config_reload.dsn(invocation))
    source.hash_keys.add(policies.policies(settings).hash_keys)

    def take(fresh: "Settings") -> None:
        source.hash_keys.add(policies.policies(fresh).hash_keys)
        lake.rest()  # it knows the targets that it was started with

    of_now = config_reload.settings_of_now(invocation, settings, seen=seen, take=take)

    def start() -> LakeReaderProcess:
        options = wiring.apply_options(of_now(), log_format=log_format, log_level=invocation.log_level(settings))
        environment = wiring.applier_environment(options, dict(os.environ))
        return LakeReaderProcess(wiring.lake_reader_command(), environment=environment)

    with LakeReader(start) as lake:
        run = Run.of(
            source,
            store,
            lake.ask,
            load_share=max_load / 100,
            wait_seconds=wait_seconds,
            every_seconds=every_seconds if continuous else 0.0,
            targets_of=lambda name: policies.targets_of(of_now(), name),
        )
        if continuous:
            run.for_ever(rest=lake.rest, repair_wanted=repair_wanted)
        chosen = _chosen(run.lake_tables(), tables)
        if not chosen:
            raise UsageError("the pipeline carries no table yet", hint="`sluice up` adds the tables")
        if repair_wanted and tables and (stale := run.stale(chosen)):
            first = next(state for state in chosen if state.key in stale)
            others = "; or name only lake tables that are not" if len(chosen) > len(stale) else ""
            raise UsageError(
                f"{first.title} is stale and cannot be repaired",
                hint=f"`sluice resync {first.source_name}` reads the whole table again{others}",
            )
        say = partial(_say, shown=-1 if json_wanted else shown)
        verdicts = run.repaired(chosen, say) if repair_wanted else run.compared(chosen, say)
    if json_wanted:
        output.as_json({"schema_version": 1, "tables": [_facts(verdict, shown) for verdict in verdicts]})
    return _concluded(verdicts, named=bool(tables))


def _ended(invocation: Invocation, *, alone: bool) -> int:
    if not alone:
        raise UsageError("--continuous-ended compares nothing", hint="use it without other options and without tables")
    wiring.require("obstore")
    from sluice.operate.compare.recording import Record

    Record(wiring.open_spool(invocation.settings().settings)).ended()
    click.echo(
        "continuous comparison is no longer expected; a `verify --continuous` that still runs reverses "
        "this with its next result"
    )
    return 0


def _concluded(verdicts: "Sequence[Comparison]", *, named: bool) -> int:
    """The exit code. Raises VerificationFailed when tables differ. `named`: tables were asked for."""
    different = [verdict.name for verdict in verdicts if verdict.outcome == DIFFERENT]
    if different:
        raise VerificationFailed(
            f"rows differ from the source in {counted(len(different), 'table')} of {len(verdicts)}: "
            f"{', '.join(different[:10])}",
            hint="`sluice verify --repair` reads again the rows that differ; `sluice resync` reads whole tables",
        )
    skipped = [verdict for verdict in verdicts if verdict.outcome == NOT_COMPARED]
    equal = counted(len(verdicts) - len(skipped), "table is", "tables are")
    click.echo(f"{equal} equal, {counted(len(skipped), 'was', 'were')} not compared", err=True)
    later = [verdict.name for verdict in skipped if verdict.passing]
    # Not raised: with --json the answer is the command's one document.
    if later:
        click.echo(
            one_line(f"error: these could not be compared now: {', '.join(later[:10])}; verify again later"), err=True
        )
        return ApplyError.exit_code
    compared = {verdict.table_id for verdict in verdicts if verdict.outcome != NOT_COMPARED}
    left = [verdict.name for verdict in skipped if verdict.table_id not in compared]
    if named and left:
        click.echo(one_line(f"error: {left[0]} cannot be compared; leave it out"), err=True)
        return UsageError.exit_code
    return 0


def _chosen(known: "Mapping[str, TableState]", names: Sequence[str]) -> "list[TableState]":
    """The lake tables of the tables named, or single ones as schema.table/target, or all that are carried. Raises
    UsageError for a name that is none of them.
    """
    return table_names.lake_tables(known.values(), names)


def _say(verdict: "Comparison", shown: int) -> None:
    if shown < 0:
        return
    if verdict.reason:
        click.echo(one_line(f"{verdict.name}: {verdict.outcome}: {verdict.reason}"))
        return
    repaired = f", {counted(verdict.repaired, 'row')} repaired" if verdict.repaired else ""
    click.echo(
        one_line(
            f"{verdict.name}: {verdict.outcome}, {counted(verdict.rows, verdict.compared)} at {show(verdict.lsn)}, "
            f"Delta version {verdict.delta_version}, {output.duration(verdict.seconds)}{repaired}"
        )
    )
    for what, rows in _differences(verdict):
        for row in rows[:shown]:
            click.echo(one_line(f"  {what}: {_key(verdict, row)}"))
        if len(rows) > shown:
            click.echo(f"  {what}: {len(rows) - shown} more")
    if not verdict.all_listed:
        click.echo("  not all rows that differ are listed")


def _differences(verdict: "Comparison") -> "list[tuple[str, Sequence[Row]]]":
    difference = verdict.difference
    return [
        ("other values", difference.changed),
        ("not in the lake", difference.missing),
        ("not at the source", difference.extra),
    ]


def _key(verdict: "Comparison", row: "Row") -> str:
    if not verdict.key_columns:
        return "a row of a table without key"
    return ", ".join(
        f"{name}={'NULL' if value is None else value}" for name, value in zip(verdict.key_columns, row.key, strict=True)
    )


def _facts(verdict: "Comparison", shown: int) -> dict[str, Any]:
    compared = not verdict.reason
    return {
        "schema": verdict.schema_name,
        "table": verdict.table_name,
        "target": verdict.target,
        "outcome": verdict.outcome,
        "compared": f"{verdict.compared}s" if compared else None,
        "reason": verdict.reason or None,
        "may_be_compared_later": verdict.passing,
        "lsn": show(verdict.lsn) if compared else None,
        "delta_version": verdict.delta_version if compared else None,
        "lake_complete_through_lsn": show(verdict.base_lsn) if compared else None,
        "keys_from_spool": verdict.changed_keys if compared else None,
        "rows": verdict.rows if compared else None,
        "lake_rows": verdict.lake_rows if compared else None,
        "seconds": round(verdict.seconds, 3),
        "differences": len(verdict.difference),
        "all_listed": verdict.all_listed,
        "repaired": verdict.repaired,
        **{
            name: [dict(zip(verdict.key_columns, row.key, strict=True)) for row in rows[:shown]]
            for name, (_, rows) in zip(("changed", "missing", "extra"), _differences(verdict), strict=True)
        },
    }
