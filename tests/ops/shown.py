"""What the status page must show of a status document, read back from the page."""

from playwright.sync_api import Page

from service.cli.output import amount, duration
from tests.ops.documents import Document


def text(page: Page, selector: str) -> str:
    return page.inner_text(selector).replace("\u00a0", " ")


def shows_all(page: Page, document: Document) -> None:
    """Every fact of `document` that the page has a place for is on it."""
    assert page.inner_text("h1") == document["pipeline"]
    facts = {node.get_attribute("data-fact"): node.inner_text() for node in page.query_selector_all("[data-fact]")}
    assert facts["version"] == document["version"]
    assert facts["spool"] == document["spool_uri"]
    assert facts["lake"] == document["lake_uri"]
    assert facts.get("publication") == document["manifest"]["publication"]
    assert facts.get("slot", "").partition(" (")[0] == (document["manifest"]["slot"] or "")
    if document["source"]:
        version = document["source"]["server_version"]
        assert facts["source"] == f"PostgreSQL {version // 10000}.{version % 10000}, {document['source']['database']}"
    for stage in document["wal"]["stages"]:
        cells = [cell.text_content() for cell in page.query_selector_all(f'#stages tr[data-stage="{stage["stage"]}"] > *')]
        assert cells == [stage["stage"], stage["lsn"] or "not known", amount(stage["behind_bytes"]), duration(stage["behind_seconds"])]
        if stage["lsn"]:
            assert stage["lsn"] in (page.text_content("#picture svg") or "")
    room = document["wal"]["headroom"]
    if room and room["safe_bytes"] is not None:
        assert text(page, "#headroom").startswith(f"{amount(room['retained_bytes'])} kept, {amount(room['safe_bytes'])} of {amount(room['limit_bytes'])} left")
    if room and room["seconds_left"] is not None:
        assert f"last for {duration(room['seconds_left'])}" in text(page, "#forecast")
        assert f"{amount(round(room['write_rate_bytes']))}/s" in text(page, "#forecast")
    snapshot = document["snapshot"]
    if snapshot["tables_total"]:
        counts = f"{snapshot['tables_done']:,} of {snapshot['tables_total']:,} tables have their rows, {snapshot['rows']:,} rows copied"
        assert text(page, "#copies").startswith(counts)
    shown = {row.query_selector("th bdi").inner_text(): row for row in page.query_selector_all("#rows tr")}  # type: ignore[union-attr]
    for table in document["tables"]:
        cells = [cell.text_content() or "" for cell in shown[f"{table['schema']}.{table['table']}"].query_selector_all("td")]
        numbers = [f"{table['rows_applied']:,}", f"{table['rows_copied']:,}", table["complete_through_lsn"] or "-", table["mode"] or "-"]
        assert [str(cells[0]).split(" ", 1)[1], *cells[1:]] == [table["state"], duration(table["lag_seconds"]), *numbers]
        assert shown[f"{table['schema']}.{table['table']}"].query_selector(".reason").text_content() == table["reason"]  # type: ignore[union-attr]
    troubles = [node.text_content() or "" for node in page.query_selector_all("#troubles li")]
    assert len(troubles) == len(document["errors"])
    for said, one in zip(troubles, document["errors"], strict=True):
        for part in (one["class"], one["where"], one["message"], one["hint"], f"{one['count']} times" if one["count"] > 1 else ""):
            assert part in said
    assert len(page.query_selector_all("#prepared li")) == len(document["prepared"])
