"""Errors as they are counted: a closed set of classes that is the program's own, and nothing of their text."""

import inspect
import re
from pathlib import Path

from sluice import errors
from sluice.errors import ServiceError, SourceUnavailable, StoreUnavailable, UnsupportedChange
from sluice.telemetry import catalogue
from sluice.telemetry.error_counts import ErrorCounts, class_of
from sluice.telemetry.metrics import Metrics


class _Finer(StoreUnavailable):
    pass


def test_the_classes_are_those_of_the_program() -> None:
    ours = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, ServiceError)}
    assert {*ours, "Other"} == set(catalogue.ERROR_CLASSES)


def test_reasons_that_are_given_are_reasons_that_are_counted() -> None:
    root = Path(errors.__file__).parent
    given = {
        word for file in root.rglob("*.py") for word in re.findall(r'reason="(\w+)"', file.read_text(encoding="utf-8"))
    }
    assert {"connection_lost", "connect_failed", "server_stopping", "server_silent"} <= given
    assert given <= set(catalogue.RECONNECT_REASONS)


def test_an_error_counts_as_the_nearest_class_and_what_is_not_ours_as_other() -> None:
    assert class_of(_Finer("x")) == "StoreUnavailable"
    assert class_of(ValueError("a row value")) == "Other"


def test_errors_add_up_by_place_class_and_what_becomes_of_them() -> None:
    counts, metrics = ErrorCounts(), Metrics("shop")
    away = (SourceUnavailable("secret-text"), SourceUnavailable("other"))
    for error in (*away, UnsupportedChange("x"), KeyError("secret-text")):
        counts.note("stream", error)
    counts.export(metrics)
    counts.note("stream", SourceUnavailable("y"))
    counts.export(metrics)
    counts.export(metrics)
    text = metrics.render().decode()
    for kind, retryable, count in (
        ("SourceUnavailable", "true", 3),
        ("UnsupportedChange", "false", 1),
        ("Other", "false", 1),
    ):
        labels = f'class="{kind}",component="stream",pipeline="shop",retryable="{retryable}"'
        assert f"sluice_errors_total{{{labels}}} {count}.0" in text
    assert "secret-text" not in text
