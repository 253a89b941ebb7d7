"""From the record of a long run to its verdict."""

from typing import Any

from tests.soak import growth


def record(*, growing: bool) -> list[dict[str, Any]]:
    """The samples of a run, forty; with `growing` the open files of ingest grow."""
    return [
        {
            "what": "sample",
            "at": 10.0 * number,
            "phase": "warm" if number < 8 else "calm",
            "processes": {"ingest": {"rss": 200 << 20, "files": 10 + (number if growing else 0)}},
            "spool": {"manifest": {"objects": 700 + number % 5, "bytes": 5 << 20}},
            "checkpoint_bytes": 30_000,
            "lake": {"t": {"entries": 40, "log": 160, "data_files": 3}},
        }
        for number in range(40)
    ]


def test_a_flat_run_passes_and_a_growing_one_is_named() -> None:
    assert growth.grown(growth.series(record(growing=False))) == []
    (grown,) = growth.grown(growth.series(record(growing=True)))
    assert grown.startswith("open files of ingest: ")


def test_files_of_dropped_tables_and_claims_of_appliers_stay_and_are_not_judged() -> None:
    lines = record(growing=False)
    for number, sample in enumerate(lines):
        sample["lake"] |= {f"made_{made}": {"entries": 4, "log": 9, "data_files": 2} for made in range(number)}
        sample["spool"] |= {"apply/lease": {"objects": 3 * number, "bytes": 180 * number}}
    found = growth.series(lines)
    assert growth.grown(found) == []
    assert {one.name: one.points[-1][1] for one in found}["data files of all lake tables in use"] == 3


def test_what_was_measured_before_the_pace_was_found_is_plotted_and_not_judged() -> None:
    judged, plotted = (
        {one.name: len(one.points) for one in growth.series(record(growing=False), warm=warm)} for warm in (False, True)
    )
    assert (judged["open files of ingest"], plotted["open files of ingest"]) == (32, 40)
