"""`status` and `tables`: where the pipeline stands. Work while nothing runs, and say what they could not reach."""

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from service.cli import output, rooms
from service.cli.invocation import Invocation, common
from service.lsn import show

if TYPE_CHECKING:
    from service.runtime.report import Report
    from service.runtime.tablereport import TableReport

_WATCH_SECONDS = 2.0
_SHOWN_TABLES = 20
_STATE_STYLES = {
    "live": "green",
    "running": "green",
    "copying": "cyan",
    "pending": "cyan",
    "new": "cyan",
    "stale": "bold red",
    "quarantined": "bold red",
    "lost": "bold red",
}
_PACKAGES = ("psycopg", "obstore")


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option("--watch", is_flag=True, help="Show again every two seconds, until Ctrl-C; with --json one document after the other.")
@common
def status(invocation: Invocation, json_wanted: bool, watch: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Show where the pipeline stands: the server's WAL, the spool, the lake, and the tables that are furthest behind.

    Read from the spool and, when it answers, from the server; the pipeline need not be running. Positions are read one after the other, not at one
    instant.

    \b
    Examples:
      sluice status
      sluice status --watch
      sluice status --json | jq .apply.complete_through_lsn
    """
    rooms.require(*_PACKAGES)
    reporter = rooms.reporter(invocation.settings().settings)
    if not watch:
        report = reporter.take()
        output.as_json(report.to_json()) if json_wanted else invocation.console().print(_status(report))
        return
    if json_wanted:
        while True:
            output.as_json(reporter.take().to_json())
            time.sleep(_WATCH_SECONDS)
    with Live(_status(reporter.take()), console=invocation.console(), auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_SECONDS)
            live.update(_status(reporter.take()), refresh=True)


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option("--state", "states", multiple=True, help="Only tables in this state; may be repeated.")
@common
def tables(invocation: Invocation, json_wanted: bool, states: tuple[str, ...]) -> None:  # noqa: FBT001 - a command's parameter
    """List every table: its state, through which LSN the lake is complete, and how far it is behind.

    A table's state is the worse of what ingest and applier say. `stale` means that the lake table is known not to equal the source; the reason is given.

    \b
    Examples:
      sluice tables
      sluice tables --state stale --json
    """
    rooms.require(*_PACKAGES)
    report = rooms.reporter(invocation.settings().settings).take()
    chosen = [table for table in report.tables if not states or table.state in states]
    if json_wanted:
        output.as_json({**report.tables_json(), "tables": [table.to_json() for table in chosen]})
        return
    invocation.console().print(_table(chosen))


def _status(report: "Report") -> RenderableType:
    parts: list[RenderableType] = [_header(report), Text(), _positions(report), Text()]
    parts += [
        Text(f"Prepared transaction {one.xid} ({one.gid!r}) has been open for {report.age_seconds(one):.0f} s: {one.rows:,} changes wait for its end")
        for one in sorted(report.manifest.prepared.values(), key=lambda one: one.prepare_time_us)
    ]
    counts = ", ".join(f"{count} {state}" for state, count in _counts(report).items()) or "none yet"
    parts.append(Text(f"Tables: {counts}"))
    worst = sorted(report.tables, key=lambda table: (table.state == "live", -(table.lag_seconds or 0.0)))
    if worst:
        parts.append(_table(worst[:_SHOWN_TABLES]))
    if len(worst) > _SHOWN_TABLES:
        parts.append(Text(f"... and {len(worst) - _SHOWN_TABLES} more: sluice tables"))
    parts += [Text(f"not reached: {item.what}: {item.why}", style="yellow") for item in report.unreachable]
    return Group(*parts)


def _header(report: "Report") -> RenderableType:
    opened = report.manifest.opened
    lines = [("Pipeline", Text(report.pipeline)), ("State", _state(report.state))]
    if opened is not None:
        lines.append(("Source", Text(f"database {opened.database}, slot {opened.slot}, publication {opened.publication}")))
    if report.server is not None:
        version = report.server.server_version
        lines.append(("Server", Text(f"PostgreSQL {version // 10000}.{version % 10000}")))
    if report.applied is not None:
        lines.append(("Applied", Text(f"{_age(report)} ago, {report.pending_entries} manifest entries behind")))
    return output.table("", ("", ""), lines)


def _positions(report: "Report") -> RenderableType:
    rows = []
    slot = report.slot
    if report.server is not None:
        rows.append(("server", show(report.server.wal_end_lsn), "-"))
    if slot is not None and slot.confirmed_flush_lsn is not None:
        rows.append(("confirmed", show(slot.confirmed_flush_lsn), output.amount(report.behind_bytes(slot.confirmed_flush_lsn))))
    rows.append(("in the spool", _lsn(report.manifest.through_lsn), output.amount(report.behind_bytes(report.manifest.through_lsn))))
    rows.append(("in the lake", _lsn(report.complete_lsn), output.amount(report.behind_bytes(report.complete_lsn)) if report.complete_lsn else "-"))
    drawn = output.table("", ("WAL", "LSN", "behind"), rows, right=("behind",))
    if slot is None or slot.restart_lsn is None:
        return drawn
    room = "no limit set" if slot.safe_wal_size is None else f"{output.amount(slot.safe_wal_size)} left before the slot may be lost"
    return Group(drawn, Text(f"The slot retains {output.amount(report.behind_bytes(slot.restart_lsn))} of WAL; {room}."))


def _table(reports: "list[TableReport]") -> RenderableType:
    rows = [
        (
            f"{table.schema}.{table.table}",
            _state(table.state),
            table.mode or "-",
            _lsn(table.complete_through_lsn),
            f"{table.rows_applied:,}",
            "-" if table.lag_seconds is None else f"{table.lag_seconds:.1f} s",
            table.reason,
        )
        for table in reports
    ]
    return output.table("", ("table", "state", "mode", "complete through", "changes applied", "lag", "reason"), rows, right=("changes applied", "lag"))


def _counts(report: "Report") -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in report.tables:
        counts[table.state] = counts.get(table.state, 0) + 1
    return dict(sorted(counts.items()))


def _age(report: "Report") -> str:
    assert report.applied is not None
    seconds = (report.taken_at - datetime.fromisoformat(report.applied.written_at)).total_seconds()
    return f"{max(0.0, seconds):.0f} s"


def _state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, "yellow"))


def _lsn(lsn: int) -> str:
    return show(lsn) if lsn else "-"
