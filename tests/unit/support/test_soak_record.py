"""From the record of a long run to its verdict and its page."""

from typing import Any

from tests.soak import growth, page


def record(*, growing: bool) -> list[dict[str, Any]]:
    """A run of forty samples; with `growing` the open files of ingest grow."""
    samples: list[dict[str, Any]] = [
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
    begin = {"what": "begin", "at": 0.0, "commit": "abc1234", "minutes": 7, "cpus": 2, "seed": 1}
    starts = [
        {"what": "start", "at": 50.0 * number, "phase": "calm", "process": "ingest", "seconds": 2.0 + number % 2}
        for number in range(6)
    ]
    restarts = [{"what": "restart", "at": 50.0, "phase": "calm", "process": "ingest", "how": "kill -9"}]
    end = {"what": "end", "at": 400.0, "tables": 1, "transactions": 1234, "of_one_row": 5_000_000, "entries": 900}
    return [begin, *samples, *starts, *restarts, end]


def test_a_flat_run_passes_and_a_growing_one_is_named() -> None:
    assert growth.grown(growth.series(record(growing=False))) == []
    (grown,) = growth.grown(growth.series(record(growing=True)))
    assert grown.startswith("open files of ingest: ")


def test_files_of_dropped_tables_and_claims_of_appliers_stay_and_are_not_judged() -> None:
    lines = record(growing=False)
    for number, sample in enumerate(line for line in lines if line["what"] == "sample"):
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


def test_the_page_has_the_figures_and_a_plot_for_what_was_measured() -> None:
    text = page.rendered(record(growing=True))
    assert "commit abc1234: 7 minutes under load on 2 cores, with SEED=1" in text
    assert "5,000,000 transactions of one row, 1,234 short ones" in text
    assert "1 restarts: 1 of ingest (kill -9)" in text
    assert "**grows**" in text
    assert text.count("```mermaid") == 7
