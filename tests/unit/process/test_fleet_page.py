"""The page of a fleet: every pipeline, escaped, without a script."""

from typing import Any

from sluice.process.fleet.page import page

SAID = {"pipeline": "shop", "state": "healthy", "headline": "healthy", "tables": 3, "lag_seconds": 1.25}


def row(**given: Any) -> dict[str, Any]:
    return {**SAID, "configuration_refused": None, "ingest": {"running": True, "restarts": 2}, **given}


def shown(*rows: dict[str, Any], refused: tuple[dict[str, str], ...] = ()) -> str:
    status = {"state": "degraded", "applier": {"running": True}, "pipelines": list(rows), "refused": list(refused)}
    return page(status).content.decode()


def test_a_row_has_what_a_pipeline_says_and_the_way_to_its_page() -> None:
    text = shown(row())
    assert '<a href="pipelines/shop/">shop</a>' in text
    assert "1.2 s" in text


def test_a_pipeline_that_does_not_run_has_no_page_to_lead_to() -> None:
    text = shown(row(ingest={"running": False, "restarts": 0}, state="lost", tables=None, lag_seconds=None))
    assert "pipelines/shop/" not in text
    assert 'class="lost"' in text


def test_nothing_that_a_pipeline_says_becomes_markup() -> None:
    text = shown(
        row(headline="<b>x</b>", configuration_refused="<i>"), refused=({"config": "<u>.yaml", "reason": "<script>"},)
    )
    assert not any(markup in text for markup in ("<b>", "<i>", "<u>", "<script"))
    assert "&lt;script&gt;" in text
