"""What a process remembers of each table's lag and commits: two hours, coarse, bounded, without guesses."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.table_state import State
from sluice.health import lag_history
from sluice.health.lag_history import STEP_SECONDS, STEPS, History
from sluice.health.tables import TableReport

BEGAN = 1000.0 * STEP_SECONDS


def table(name: str = "orders", **changes: Any) -> TableReport:
    return replace(TableReport("public", name, "", State.LIVE, "", "", "", "mirror", 1, 1, 0, 0, 0.0, 0), **changes)


def note(kept: History, step: float, *tables: TableReport, flush: float | None = None) -> None:
    kept.note(tables, flush_seconds=flush, now=BEGAN + step * STEP_SECONDS)


def test_the_worst_lag_of_a_step_stays_and_what_the_records_grew_by_is_counted() -> None:
    kept = History(began_at=BEGAN)
    note(kept, 0.1, table(lag_seconds=1.0, rows_applied=500, delta_version=7), flush=0.5)
    note(kept, 0.5, table(lag_seconds=9.0, rows_applied=620, delta_version=9), flush=3.0)
    note(kept, 0.9, table(lag_seconds=2.0, rows_applied=620, delta_version=9), flush=0.1)
    note(kept, 1.2, table(lag_seconds=1.5, rows_applied=630, delta_version=10))
    said = kept.to_json(["public.orders", "public.unknown"], now=BEGAN + 1.5 * STEP_SECONDS)
    lines = {"lag_seconds": [9.0, 1.5], "rows": [120, 10], "versions": [2, 1]}
    assert said["tables"] == {"public.orders": lines}
    assert said["pipeline"] == lines
    assert said["spool_lag_seconds"] == [3.0, None]


def test_a_step_without_a_look_is_not_known_and_a_table_without_lag_has_none() -> None:
    kept = History(began_at=BEGAN)
    note(kept, 0, table(lag_seconds=1.0))
    note(kept, 2, table(lag_seconds=None, state=State.PAUSED))
    line = kept.to_json(["public.orders"], now=BEGAN + 2 * STEP_SECONDS)["tables"]["public.orders"]
    assert line["lag_seconds"] == [1.0, None, None]
    assert line["rows"] == [0, None, 0]


def test_two_hours_are_kept_and_no_longer_and_it_says_since_when() -> None:
    kept = History(began_at=BEGAN + 30)
    for step in range(STEPS + 5):
        note(kept, step + 0.5, table(lag_seconds=float(step)))
    early = kept.to_json([], now=BEGAN + 60)
    late = kept.to_json(["public.orders"], now=BEGAN + (STEPS + 4.5) * STEP_SECONDS)
    assert early["since"] == "1970-01-02T09:20:30+00:00"
    assert late["since"] == "1970-01-02T09:30:00+00:00"
    assert late["tables"]["public.orders"]["lag_seconds"] == [float(step) for step in range(5, STEPS + 5)]


def test_a_new_generation_counts_its_rows_from_none_and_a_new_lake_table_its_versions() -> None:
    kept = History(began_at=BEGAN)
    note(kept, 0, table(rows_applied=900, delta_version=40))
    note(kept, 1, table(rows_applied=30, delta_version=2, generation=2))
    line = kept.to_json(["public.orders"], now=BEGAN + STEP_SECONDS)["tables"]["public.orders"]
    assert (line["rows"], line["versions"]) == ([0, 30], [0, 3])


def test_a_look_without_a_record_of_the_applier_counts_nothing_twice() -> None:
    kept = History(began_at=BEGAN)
    for step, (rows, version) in enumerate([(1_000_000, 5000), (0, None), (1_000_005, 5001)]):
        note(kept, step, table(rows_applied=rows, delta_version=version))
    line = kept.to_json(["public.orders"], now=BEGAN + 2 * STEP_SECONDS)["tables"]["public.orders"]
    assert (line["rows"], line["versions"]) == ([0, 0, 5], [0, 0, 1])


def test_tables_past_the_limit_and_tables_that_are_gone_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "MOST_TABLES", 2)
    kept = History(began_at=BEGAN)
    names = ["public.a", "public.b", "public.c"]
    note(kept, 0, table("a"), table("b"), table("c"))
    assert list(kept.to_json(names, now=BEGAN)["tables"]) == ["public.a", "public.b"]
    note(kept, 0.5, table("b"), table("c"))
    note(kept, 0.9, table("b"), table("c"))
    assert list(kept.to_json(names, now=BEGAN)["tables"]) == ["public.b", "public.c"]
