"""What the status page must show of a status document, read back from the page."""

from playwright.sync_api import Page

from sluice.cli.output import amount, duration
from tests.ops.page.documents import Document


def text(page: Page, selector: str) -> str:
    return str(page.inner_text(selector)).replace("\u00a0", " ")


def shows_all(page: Page, document: Document) -> None:
    seen = page.evaluate(READ)
    facts = seen["facts"]
    assert seen["title"] == document["pipeline"]
    assert facts["version"] == document["version"]
    assert facts["spool"] == document["spool_uri"]
    assert facts["lake"] == document["lake_uri"]
    assert facts.get("publication") == document["manifest"]["publication"]
    assert facts.get("slot", "").partition(" (")[0] == (document["manifest"]["slot"] or "")
    if document["source"]:
        version = document["source"]["server_version"]
        assert facts["source"] == f"PostgreSQL {version // 10000}.{version % 10000}, {document['source']['database']}"
    for stage in document["wal"]["stages"]:
        cells = [
            stage["stage"],
            stage["lsn"] or "not known",
            amount(stage["behind_bytes"]),
            duration(stage["behind_seconds"]),
        ]
        assert seen["stages"][stage["stage"]] == cells
        assert (stage["lsn"] or "") in seen["picture"]
    _shows_headroom(page, document)
    snapshot = document["snapshot"]
    if snapshot["tables_total"]:
        counts = (
            f"{snapshot['tables_done']:,} of {snapshot['tables_total']:,} tables have their rows, "
            f"{snapshot['rows']:,} rows read"
        )
        assert text(page, "#snapshots").startswith(counts)
    for table in document["tables"]:
        state, *cells = seen["tables"][f"{table['schema']}.{table['table']}"]
        numbers = [
            f"{table['rows_applied']:,}",
            f"{table['snapshot_rows']:,}",
            table["complete_through_lsn"] or "-",
            table["mode"] or "-",
            f"{table['way']}: {table['way_reason']}" if table["way_reason"] else table["way"] or "-",
            table["maintenance"]["summary"] or "-",
            table["reason"],
        ]
        assert [state.split(" ", 1)[1], *cells] == [table["state"], duration(table["lag_seconds"]), *numbers]
    assert len(seen["tables"]) == len(document["tables"])
    assert len(seen["problems"]) == len(document["problems"])
    for said, one in zip(seen["problems"], document["problems"], strict=True):
        times = f"{one['count']} times" if one["count"] > 1 and one["part"] == "ingest" else ""
        for part in (one["severity"], one["code"], one["where"], one["message"], one["what_to_do"], times):
            assert part in said
        assert f"docs/runbooks/{one['runbook']}.md" in said or f"Runbook: {one['runbook']}" in said
    assert seen["prepared"] == len(document["prepared"])
    assert seen["waits"] == len(document["waits"])
    process = document["process"] or {"errors": [], "neighbours": []}
    assert len(seen["errors"]) == len(process["errors"])
    for said, one in zip(seen["errors"], process["errors"], strict=True):
        for part in (one["error"], one["where"], one["message"], one["what_to_do"]):
            assert part in said
    assert seen["neighbours"] == [f"{one['name']}: {one['state'] or 'not asked yet'}" for one in process["neighbours"]]


def _shows_headroom(page: Page, document: Document) -> None:
    wal = document["wal"]["headroom"]
    if wal and wal["safe_bytes"] is not None:
        left = f"{amount(wal['retained_bytes'])} kept, {amount(wal['safe_bytes'])} of {amount(wal['limit_bytes'])} left"
        assert text(page, "#headroom").startswith(left)
    if wal and wal["seconds_left"] is not None:
        assert f"last for {duration(wal['seconds_left'])}" in text(page, "#forecast")
        assert f"{amount(round(wal['write_rate_bytes']))}/s" in text(page, "#forecast")


READ = """() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const texts = (nodes) => [...nodes].map((node) => node.textContent);
    return {
        title: document.querySelector("h1").textContent,
        facts: Object.fromEntries(all("[data-fact]").map((node) => [node.dataset.fact, node.textContent])),
        stages: Object.fromEntries(all("#stages tr").map((row) => [row.dataset.stage, texts(row.children)])),
        picture: document.querySelector("#picture svg").textContent,
        tables: Object.fromEntries(all("#rows tr").map((row) => {
            const [name, reason] = row.firstChild.children;
            return [name.textContent, [...texts([...row.children].slice(1)), reason.textContent]];
        })),
        problems: texts(all("#problems li")),
        prepared: all("#prepared li").length,
        waits: all("#waits li").length,
        errors: texts(all("#errors li")),
        neighbours: texts(all("#neighbours li")),
    };
}"""
