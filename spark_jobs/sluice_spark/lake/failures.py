"""What a failure of Spark or Delta means: the table cannot follow, or it may work later.

Owns two promises. An exception's text stays in this module, because it may quote rows and literals;
its class, error condition and SQLSTATE are passed on. And only a failure that would happen again
with the same window is called permanent: bad data, a statement or a table that Delta refuses. A
lost executor, a full disk, no answer, too little memory and another commit in between are not
permanent, and neither is any other failure. (Spark: Error Conditions.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from sluice.errors import ApplyError, ServiceError, UnsupportedChange
from sluice_spark.lake.merge import NO_BASE_ROW

_PERMANENT_CLASSES = ("0A", "21", "22", "23", "42")
"""SQLSTATE classes: feature not supported, cardinality violation, data exception, integrity
constraint violation, syntax error or access rule violation.
"""
_MISSING = ("42K03", "42P01", "42704")
"""A file, a table or an object is not there: it may be the store that did not show it, so it is no
verdict on the window.
"""
_PASSING = (
    "java.io.IOException",
    "java.io.UncheckedIOException",
    "java.util.concurrent.TimeoutException",
    "java.lang.InterruptedException",
    "java.lang.OutOfMemoryError",
)
_CONFLICT = "2D521"
"""Delta's SQLSTATE for another commit that came first."""
_RAISED = "USER_RAISED_EXCEPTION"
_DEEPEST = 20


class SparkGone(ApplyError):
    """Spark itself does not answer: no window of any table can be applied in this process any more."""


class CommitConflict(ApplyError):
    """Another commit to the table came first. Nothing was committed; the window is applied again."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Spark's errors inside the block become ours."""
    try:
        yield
    except PySparkException as error:
        origin = getattr(error, "_origin", None)
        raise (
            verdict(_chain(origin)) if origin is not None else ApplyError(f"Spark failed ({type(error).__name__})")
        ) from None
    except Py4JJavaError as error:
        # What PySpark does not know by class arrives like this, most of Delta's own errors among
        # them.
        raise verdict(_chain(error.java_exception)) from None
    except Py4JError as error:
        raise SparkGone(f"Spark does not answer ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception of a chain, without its text. `passing` says that a later attempt may succeed,
    `ours` that our own statement raised it.
    """

    name: str
    condition: str = ""
    state: str = ""
    passing: bool = False
    ours: bool = False


def no_row_to_keep_from() -> UnsupportedChange:
    """A row that has lost values: the lake lacks the row that holds them."""
    return UnsupportedChange("a value was not sent and the lake has no row to keep it from")


def columns_in_a_feed() -> UnsupportedChange:
    """A step that Delta does not define for a table with a change data feed."""
    return UnsupportedChange(
        "columns of the lake table go or get other names in the step that gives a new column its value, and Delta does "
        "not define that for a table with a change data feed",
        hint="set delta.enableChangeDataFeed of the lake table to false, and resync the table",
    )


def two_rows_of_one_key(table: str) -> UnsupportedChange:
    """Which of them a change is meant for is not known."""
    return UnsupportedChange(
        f"{table}: two rows of the lake table have the same key",
        hint="look for another writer, then resync the table",
    )


def verdict(causes: list[Cause]) -> ServiceError:
    """Our error for a chain, outermost first. The innermost condition is what happened, the
    ones around it say where.
    """
    if any(cause.ours for cause in causes):
        return no_row_to_keep_from()
    named = next((cause for cause in reversed(causes) if cause.condition), causes[-1])
    what = ", ".join(
        text for text in (named.condition or named.name, named.state and f"SQLSTATE {named.state}") if text
    )
    if any(cause.state == _CONFLICT for cause in causes):
        return CommitConflict(
            f"another commit to the table came first ({what})",
            hint="do not write to the pipeline's tables; the window is applied again",
        )
    if any(cause.passing for cause in causes) or named.state in _MISSING or named.state[:2] not in _PERMANENT_CLASSES:
        return ApplyError(f"Spark could not commit ({what})")
    return UnsupportedChange(f"Delta refused the change ({what})")


def _chain(origin: Any) -> list[Cause]:
    gateway: Any = SparkContext._gateway
    causes: list[Cause] = []
    while origin is not None and len(causes) < _DEEPEST:
        name = str(origin.getClass().getSimpleName())
        is_spark = is_instance_of(gateway, origin, "org.apache.spark.SparkThrowable")
        condition, state = (
            str(text or "") for text in ((origin.getCondition(), origin.getSqlState()) if is_spark else ("", ""))
        )
        passing = any(is_instance_of(gateway, origin, kind) for kind in _PASSING)
        causes.append(
            Cause(
                name,
                condition=condition,
                state=state,
                passing=passing,
                ours=condition == _RAISED and NO_BASE_ROW in str(origin.getMessage()),
            )
        )
        origin = origin.getCause()
    return causes
