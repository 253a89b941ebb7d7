"""A report for people, on a terminal of any width, with or without colours.

Invariant: a state is a word, the colour only helps; nothing is shown that `--json` does not have.
"""

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sluice.cli import output
from sluice.cli.output import SEVERITY_STYLES, amount, duration, number
from sluice.contract.applied import WAYS
from sluice.contract.table_state import WORST_FIRST
from sluice.health.verdict import LOW_HEADROOM, SCARCE_HEADROOM
from sluice.lsn import show
from sluice.printable import counted, one_line

if TYPE_CHECKING:
    from sluice.health.problems import Problem
    from sluice.health.report import Report
    from sluice.health.snapshots import Snapshots
    from sluice.health.tables import TableReport
    from sluice.health.verdict import Verdict
    from sluice.health.wal import Headroom

_WIDE = 110
"""Columns from which a table has all of its columns."""
_BAR_CELLS = 20
_SNAPSHOTS_SHOWN = 5
_STATE_STYLES = {
    "live": "green",
    "healthy": "green",
    "snapshot": "cyan",
    "pending": "cyan",
    "new": "cyan",
    "stale": "bold red",
    "gap": "bold red",
    "quarantined": "bold red",
    "lost": "bold red",
    "stopped": "bold red",
}


def status(report: "Report", *, width: int, unicode: bool, top: int) -> RenderableType:
    """Header, WAL, snapshots, tables, problems."""
    bar = _Bar("█", "░") if unicode else _Bar("#", "-")
    parts: list[RenderableType] = [_header(report), Text(), _stages(report)]
    if report.headroom is not None:
        parts.append(_headroom(report.headroom, bar))
    parts += [Text(), *_snapshots(report.snapshots, bar)]
    parts += [
        Text(
            f"Prepared transaction {one.xid} ({one.gid!r}) has been open for "
            f"{duration(report.age_seconds(one))}: waiting for its end: {counted(one.rows, 'change')}"
        )
        for one in sorted(report.manifest.prepared.values(), key=lambda one: one.prepare_time_us)
    ]
    parts += _tables(report, width=width, top=top)
    parts += problems(report.verdict)
    return Group(*parts)


def table_list(reports: "list[TableReport]", *, width: int) -> RenderableType:
    """Tables in the order given; a narrow terminal gets the columns that matter most."""
    wide = width >= _WIDE
    names = (
        ("table", "state", "mode", "way", "complete through", "snapshot", "applied", "lag", "reason")
        if wide
        else ("table", "state", "complete through", "lag", "reason")
    )
    return output.table("", names, [_row(table, wide=wide) for table in reports], right=("snapshot", "applied", "lag"))


class _Bar:
    def __init__(self, full: str, empty: str) -> None:
        self._full, self._empty = full, empty

    def __call__(self, share: float, style: str) -> Text:
        cells = round(min(max(share, 0.0), 1.0) * _BAR_CELLS)
        return Text.assemble("[", (self._full * cells, style), self._empty * (_BAR_CELLS - cells), "]")


def _header(report: "Report") -> RenderableType:
    opened, server = report.manifest.opened, report.server
    state = Text.assemble(
        _state(report.verdict.state),
        *([f", up for {duration(report.uptime_seconds)}"] if report.uptime_seconds is not None else []),
    )
    lines = [
        ("Pipeline", Text(report.pipeline)),
        ("State", state),
        ("As of", Text(report.taken_at.isoformat(timespec="seconds"))),
    ]
    if opened is not None or server is not None:
        version = server.server_version if server is not None else opened.server_version if opened is not None else 0
        where = server.database if server is not None else opened.database if opened is not None else ""
        lines.append(("Source", Text(one_line(f"PostgreSQL {version // 10000}.{version % 10000}, database {where}"))))
    if opened is not None:
        wal_status = f" ({report.slot.wal_status})" if report.slot is not None and report.slot.wal_status else ""
        lines.append(("Slot", Text(one_line(f"{opened.slot}{wal_status}, publication {opened.publication}"))))
    lines += [(name, Text(uri)) for name, uri in (("Spool", report.spool_uri), ("Lake", report.lake_uri)) if uri]
    lines.append(("Version", Text(report.version)))
    return output.table("", ("", ""), lines)


def _stages(report: "Report") -> RenderableType:
    rows = [
        (
            stage.stage,
            show(stage.lsn) if stage.lsn else "-",
            "" if stage.stage == "server" else amount(stage.behind_bytes),
            "" if stage.stage == "server" else duration(stage.behind_seconds),
        )
        for stage in report.stages
        # Seen from outside, what was received is not known: a row of dashes would look like a fault.
        if stage.stage != "received" or stage.lsn is not None
    ]
    return output.table("", ("WAL", "LSN", "behind", "for"), rows, right=("behind", "for"))


def _headroom(headroom: "Headroom", bar: _Bar) -> RenderableType:
    kept = f"The slot keeps {amount(headroom.retained_bytes)} of WAL"
    if headroom.share is None or headroom.limit_bytes is None:
        return Text(f"{kept}; max_slot_wal_keep_size sets no limit, so that the server's disk is the limit.")
    style = "bold red" if headroom.share < SCARCE_HEADROOM else "yellow" if headroom.share < LOW_HEADROOM else "green"
    left = f" {headroom.share:.0%} of {amount(headroom.limit_bytes)} left"
    if headroom.seconds_left is not None:
        left += f", enough for {duration(headroom.seconds_left)} at {amount(round(headroom.write_rate or 0))}/s"
    return Group(Text(f"{kept}; headroom before it may be lost:"), Text.assemble(bar(headroom.share, style), left))


def _snapshots(found: "Snapshots", bar: _Bar) -> list[RenderableType]:
    if not found.tables_total:
        return []
    line = f"Snapshots: {found.tables_done:,} of {counted(found.tables_total, 'table')}, {counted(found.rows, 'row')}"
    if found.rows_per_second is not None:
        line += f", {number(found.rows_per_second)} rows/s"
    if found.eta_seconds is not None:
        line += f", {duration(found.eta_seconds)} left"
    lines: list[RenderableType] = [Text(line)]
    if found.waits is not None:
        lines.append(Text(one_line(f"  they wait: {found.waits}"), style="yellow"))
    for one in found.tables[:_SNAPSHOTS_SHOWN]:
        if one.rows is None:
            lines.append(Text(one_line(f"  {one.table} waits for its turn or is under way")))
        elif one.estimated_rows:
            share = min(1.0, one.rows / one.estimated_rows)
            lines.append(
                Text.assemble(
                    "  ",
                    bar(share, "cyan"),
                    one_line(f" {share:.0%} {one.table}, {one.rows:,} of about {counted(one.estimated_rows, 'row')}"),
                )
            )
        else:
            lines.append(Text(one_line(f"  {one.table}, {counted(one.rows, 'row')} so far")))
    if len(found.tables) > _SNAPSHOTS_SHOWN:
        lines.append(Text(f"  and {len(found.tables) - _SNAPSHOTS_SHOWN:,} more"))
    return lines


def _tables(report: "Report", *, width: int, top: int) -> list[RenderableType]:
    counts: dict[str, int] = {}
    for table in report.tables:
        counts[table.state] = counts.get(table.state, 0) + 1
    lines: list[RenderableType] = [
        Text("Tables: " + (", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "none yet"))
    ]
    ways = Counter(table.way for table in report.tables if table.way)
    if ways:
        lines.append(Text("Ways: " + ", ".join(f"{ways[way]:,} {way}" for way in WAYS if ways[way])))
    worst = sorted(report.tables, key=lambda table: (WORST_FIRST.index(table.state), -(table.lag_seconds or 0.0)))
    if worst[:top]:
        lines.append(table_list(worst[:top], width=width))
    if len(worst) > top:
        lines.append(Text(f"... and {len(worst) - top:,} more: sluice tables"))
    return lines


def _row(table: "TableReport", *, wide: bool) -> tuple[str | Text, ...]:
    lag = duration(table.lag_seconds)
    name = table.title
    through = show(table.complete_through_lsn) if table.complete_through_lsn else "-"
    if not wide:
        return name, _state(table.state), through, lag, table.remark
    return (
        name,
        _state(table.state),
        table.mode or "-",
        f"{table.way}: {table.way_reason}" if table.way_reason else table.way or "-",
        through,
        f"{table.snapshot_rows:,}",
        f"{table.rows_applied:,}",
        lag,
        table.remark,
    )


def problems(verdict: "Verdict") -> list[RenderableType]:
    """Each problem with what to do, nothing when there is none."""
    if not verdict.problems:
        return []
    return [Text(), Text("Problems", style="bold"), *(_problem(problem, verdict.at) for problem in verdict.problems)]


def _problem(problem: "Problem", now: float) -> RenderableType:
    head = f"{problem.severity:8} {problem.code}  {problem.where}"
    head += f", {problem.count:,} times" if problem.part == "ingest" and problem.count > 1 else ""
    age = problem.age_seconds(now)
    head += f", since {duration(age)}" if age is not None else ""
    lines = [Text(one_line(problem.message)), Text(one_line(f"What to do: {problem.remedy}"))]
    return Group(
        Text(one_line(head), style=SEVERITY_STYLES[problem.severity]),
        *(Padding(line, (0, 0, 0, 4), expand=False) for line in lines),
    )


def _state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, "yellow"))
