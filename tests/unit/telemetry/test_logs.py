"""Logs: no secret and no row value in any form of line, and no floods."""

import io
import json
import logging
import re
from collections import deque

import pytest
import structlog

from sluice import printable
from sluice.errors import StoreRefused
from sluice.telemetry import logs
from sluice.telemetry.logs import FLOOD_LINES, FLOOD_SECONDS, FloodLimit

SECRET = 'pa"ss\\wörd/1'
ROW_VALUE = "row-value-canary"


def lines(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(log_format=log_format, level=level, secrets=(SECRET,), stream=stream, color=False)
    return stream


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_secret_is_cut_out_wherever_it_hides(log_format: str) -> None:
    stream = lines(log_format)
    logger = structlog.get_logger()
    logger.info(SECRET)
    logger.info(
        "connecting", dsn=f"postgresql://u:{SECRET}@h", nested={"deep": [SECRET]}, error=StoreRefused(f"bad {SECRET}")
    )
    logging.getLogger("library").warning("retrying %s", SECRET)
    text = stream.getvalue()
    assert not re.search(r"pa.{1,4}ss|w.{1,6}rd.{1,3}1|%22ss", text)
    assert text.count("********") == 5


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        ("hunter2", "hunter2-new", "hunter2-new"),
        ("hunter2", "old-hunter2-new", "old-hunter2-new"),
        ("hunter2-old", "old-hunter2", "hunter2-old-hunter2"),
    ],
)
def test_of_secrets_that_lie_in_one_another_no_letter_is_left(
    monkeypatch: pytest.MonkeyPatch, first: str, later: str, said: str
) -> None:
    monkeypatch.setattr(logs, "_LATER", deque())
    stream = io.StringIO()
    logs.configure(log_format="json", level="info", secrets=(first,), stream=stream)
    logs.hide(later)
    structlog.get_logger().info("connecting", password=said)
    assert json.loads(stream.getvalue())["password"] == printable.MASK


def test_a_line_is_json_though_an_option_of_a_store_is_a_word_of_it() -> None:
    stream = io.StringIO()
    logs.configure(log_format="json", level="info", secrets=("true", "false", "null"), stream=stream)
    structlog.get_logger().info("stopped", tried_again=False, kept=True, why=None)
    said = json.loads(stream.getvalue())
    assert (said["tried_again"], said["kept"], said["why"]) == (False, True, None)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_foreign_exception_is_named_and_placed_and_its_message_left_out(log_format: str) -> None:
    stream = lines(log_format)
    try:
        raise ValueError(f"could not convert {ROW_VALUE}")
    except ValueError as error:
        structlog.get_logger().exception("decoding failed", table="public.orders")
        structlog.get_logger().warning("again", error=error)
        logging.getLogger("library").exception("it failed")
    text = stream.getvalue()
    assert ROW_VALUE not in text
    assert text.count("ValueError") == 3
    assert "test_a_foreign_exception" in text


def test_json_lines_have_time_level_event_and_words_of_our_errors_and_none_is_below_the_level() -> None:
    stream = lines("auto", "warning")  # which is JSON where there is no terminal
    structlog.get_logger().info("chatter")
    logging.getLogger("library").info("chatter")
    structlog.get_logger("store").warning("refused", key="a", error=StoreRefused("s3://b: no permission"))
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["key"]) == ("refused", "warning", "a")
    assert line["error"] == "StoreRefused: s3://b: no permission"
    assert line["time"].endswith("Z")


def test_a_flood_of_one_event_is_cut_and_counted_and_others_pass() -> None:
    now = 0.0
    limit = FloodLimit(monotonic=lambda: now)

    def passes(event: str, table: str = "") -> bool:
        try:
            limit(None, "warning", {"event": event, "table": table})
        except structlog.DropEvent:
            return False
        return True

    assert sum(passes("retrying") for _ in range(1_000_000 // 100)) == FLOOD_LINES
    assert passes("something else")
    assert passes("retrying", "public.orders")
    now = FLOOD_SECONDS
    first = limit(None, "warning", {"event": "retrying", "table": ""})
    assert first["suppressed"] == 10_000 - FLOOD_LINES


def test_distinct_events_do_not_grow_without_bound() -> None:
    limit = FloodLimit(monotonic=lambda: 0.0)
    for number in range(5000):
        limit(None, "info", {"event": f"event {number}"})
    assert len(limit._windows) <= 1000
