"""What the person in front of it sees: a table that moves on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sluice.lsn import show
from tools.demo.freshness import FRESHNESS, percentile
from tools.local.compare import Comparison

_PLAIN_SECONDS = 5.0
"""Without a terminal one line in this time."""
_PLAIN_WIDTH = 140


class Screen:
    """Progress until `result`. Use as a context manager."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=_PLAIN_WIDTH)
        self._live = (
            Live(console=self.console, refresh_per_second=4, transient=True) if self.console.is_terminal else None
        )
        self._started = time.monotonic()
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[{time.monotonic() - self._started:5.1f} s] {text}", markup=False, soft_wrap=True)

    def progress(
        self,
        *,
        doing: str,
        transactions: int,
        tables: Sequence[dict[str, Any]],
        source_rows: dict[str, int],
        ages: list[float],
    ) -> None:
        fresh = percentile(ages, 0.5)
        line = (
            f"{doing}: {transactions:,} transactions committed, freshness p50 "
            f"{'-' if fresh is None else f'{fresh:.1f} s'}"
        )
        if self._live:
            self._live.update(Group(Text(line), _progress_table(tables, source_rows)))
        elif time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            states = [f"{_name(table)} {table['state']}" for table in tables]
            self.say(f"{line}; {', '.join(states) or 'no table yet'}")

    def result(
        self,
        comparisons: Sequence[Comparison],
        *,
        tables: Sequence[dict[str, Any]],
        complete_lsn: int,
        ages: list[float],
    ) -> None:
        known = {(table["schema"], table["table"]): table for table in tables if not table["target"]}
        shown = Table(title="Source and lake, compared row by row")
        for heading in ("table", "rows at the source", "rows in Delta", "checksum", "state", "way", "complete through"):
            shown.add_column(heading, justify="right" if heading.startswith("rows") else "left")
        for one in comparisons:
            state = known.get((one.schema, one.table), {})
            verdict = Text("equal", "green") if one.is_equal else Text("DIFFERENT", "bold red")
            shown.add_row(
                f"{one.schema}.{one.table}",
                f"{one.source_rows:,}",
                f"{one.lake_rows:,}",
                verdict,
                str(state.get("state", "-")),
                _way(state),
                str(state.get("complete_through_lsn") or "-"),
            )
        self.console.print(shown)
        for one in comparisons:
            for difference in one.differences:
                self.console.print(f"{one.schema}.{one.table}: {difference}", markup=False)
        self.console.print(f"All tables complete through LSN {show(complete_lsn)}")
        p50, p99 = percentile(ages, 0.5), percentile(ages, 0.99)
        if p50 is not None and p99 is not None:
            self.console.print(
                f"From commit to Delta, with apply.freshness {FRESHNESS}: p50 {p50:.1f} s, p99 {p99:.1f} s "
                f"({len(ages)} sampled commits)"
            )


def _name(table: dict[str, Any]) -> str:
    return f"{table['table']}/{table['target']}" if table["target"] else str(table["table"])


def _way(table: dict[str, Any]) -> str:
    """How its changes were committed, and why not directly."""
    way = str(table.get("way") or "-")
    return f"{way}: {table['way_reason']}" if table.get("way_reason") else way


def _progress_table(tables: Sequence[dict[str, Any]], source_rows: dict[str, int]) -> Table:
    shown = Table()
    for heading in ("table", "rows at the source", "changes applied", "state", "way", "complete through", "behind"):
        shown.add_column(
            heading, justify="right" if heading in ("rows at the source", "changes applied", "behind") else "left"
        )
    for table in tables:
        lag = table.get("lag_seconds")
        shown.add_row(
            _name(table),
            f"{source_rows.get(table['table'], 0):,}",
            f"{table['rows_applied']:,}",
            table["state"],
            table["way"] or "-",
            table["complete_through_lsn"] or "-",
            "-" if lag is None else f"{lag:.0f} s",
        )
    return shown
