"""Logs: structured lines on stderr, for people or for machines.

Invariants: no line holds a known secret in any spelling that rendering could give it. An
exception's message is written only when the exception is ours, because a library's may quote a row.
The same event cannot flood the log. Other libraries' logging goes the same way.
"""

import json
import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import Any, TextIO
from urllib.parse import quote

import structlog
from structlog.typing import EventDict, Processor

from sluice.errors import ServiceError
from sluice.printable import MASK, one_line

FLOOD_LINES = 20
FLOOD_SECONDS = 10.0
"""Lines of one event that are written in this many seconds; the rest are counted, and the next one
written says how many.
"""
_FLOOD_EVENTS = 1000
_SHORTEST_SECRET = 4
"""A shorter secret is also part of ordinary words; cutting it out would garble every line and tell
its letters.
"""
_NO_SECRETS = frozenset({"true", "false", "null"})
"""Values of ordinary options, and words of JSON: a line without them could not be read by a machine."""
_CARRIED: dict[str, str] = {}
_LATER: deque[tuple[str, ...]] = deque(maxlen=64)
"""Spellings of the newest secrets that `hide` was given: short-lived ones are made for each connection."""


def configure(
    *, log_format: str, level: str, secrets: Iterable[str] = (), stream: TextIO | None = None, color: bool | None = None
) -> None:
    """Sets up logging for the process. `log_format` is auto, console or json; auto is console when
    `stream` (stderr) is a terminal.
    """
    stream = stream or sys.stderr
    console = for_people(log_format, stream)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: Processor = (
        _console(stream.isatty() if color is None else color)
        if console
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _carry,
            structlog.processors.add_log_level,
            FloodLimit(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            describe_exception,
            renderer,
            Redaction(secrets),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Forward()], level=max(threshold, logging.WARNING), force=True)
    logging.captureWarnings(capture=True)


def carry(**fields: str) -> None:
    """From now on every line of this process has these fields."""
    _CARRIED.update(fields)


def in_context(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work` for another thread, whose lines are to have the fields that are bound in this one."""
    return partial(copy_context().run, work)


def _carry(_logger: Any, _method: str, event: EventDict) -> EventDict:
    for name, value in _CARRIED.items():
        event.setdefault(name, value)
    return event


def hide(secret: str) -> None:
    """From now on no line holds `secret`, which was not known when logging was set up."""
    spellings = _all_spellings((secret,))
    if spellings and spellings not in _LATER:
        _LATER.append(spellings)


def for_people(log_format: str, stream: TextIO) -> bool:
    """Whether lines on `stream` are for people, not for machines."""
    return log_format == "console" or (log_format == "auto" and stream.isatty())


class Redaction:
    """The last processor: cuts every known secret out of the finished line."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._spellings = _all_spellings(secrets)

    def __call__(self, _logger: Any, _method: str, line: Any) -> Any:
        return self.clean(line) if isinstance(line, str) else line

    def clean(self, text: str) -> str:
        # All are found before any is cut out: one may lie in another, or overlap it.
        found = sorted(_places(text, chain(self._spellings, *tuple(_LATER))))
        parts, shown_from = [], 0
        for start, end in found:
            if start >= shown_from:
                parts += [text[shown_from:start], MASK]
            shown_from = max(shown_from, end)
        return "".join([*parts, text[shown_from:]])


class FloodLimit:
    """Drops lines of one event (of one table, where it names one) past FLOOD_LINES in
    FLOOD_SECONDS; the next one says how many.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._windows: dict[tuple[str, str, str], tuple[float, int]] = {}

    def __call__(self, _logger: Any, method: str, event: EventDict) -> EventDict:
        now = self._monotonic()
        key = (method, str(event.get("event", ""))[:80], f"{event.get('pipeline', '')}.{event.get('table', '')}")
        begin, count = self._windows.get(key, (now, 0))
        if now - begin >= FLOOD_SECONDS:
            if count > FLOOD_LINES:
                event["suppressed"] = count - FLOOD_LINES
            begin, count = now, 0
        if len(self._windows) >= _FLOOD_EVENTS and key not in self._windows:
            self._windows.clear()
        self._windows[key] = (begin, count + 1)
        if count >= FLOOD_LINES:
            raise structlog.DropEvent
        return event


def describe_exception(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replaces `exc_info` and an exception under `error` by words that are safe to write."""
    failure = event.get("error")
    if isinstance(failure, BaseException):
        event["error"] = describe(failure)
    info = event.pop("exc_info", None)
    if info:
        failure = (
            info if isinstance(info, BaseException) else (info[1] if isinstance(info, tuple) else sys.exc_info()[1])
        )
        if failure is not None:
            event.setdefault("error", describe(failure))
            event["frames"] = frames(failure)
    return event


def describe(error: BaseException) -> str:
    """`error` in words that hold no row value: its message when it is ours, its class alone
    otherwise.
    """
    return f"{type(error).__name__}: {error}" if isinstance(error, ServiceError) else type(error).__name__


def frames(error: BaseException) -> list[str]:
    """Where `error` came from, innermost last, without any value."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__, limit=-12)
    ]


class _Forward(logging.Handler):
    """Hands other libraries' records to structlog, warnings and worse: what they say in passing is
    nobody's business here.
    """

    def emit(self, record: logging.LogRecord) -> None:
        fields: MutableMapping[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1]:
            fields["exc_info"] = record.exc_info[1]
        message = record.getMessage()
        if record.name == "asyncio":
            # What follows quotes arguments of callbacks and results of tasks.
            message = message.partition("\n")[0].partition("(")[0]
        structlog.get_logger().log(record.levelno, message, **fields)


def _places(text: str, spellings: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where each of `spellings` begins and ends in `text`."""
    for spelling in spellings:
        at = text.find(spelling)
        while at >= 0:
            yield at, at + len(spelling)
            at = text.find(spelling, at + 1)


def _all_spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Sorted, so that the same secrets give the same."""
    hidden = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET and secret.lower() not in _NO_SECRETS]
    return tuple(sorted({spelling for secret in hidden for spelling in _spellings(secret)}))


def _spellings(secret: str) -> set[str]:
    encoded = json.dumps(secret)[1:-1]
    return {
        secret,
        encoded,
        json.dumps(encoded)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
    }


def _console(color: bool) -> Processor:  # noqa: FBT001 - one thing to say
    lines = structlog.dev.ConsoleRenderer(
        colors=color,
        exception_formatter=structlog.dev.plain_traceback,
        sort_keys=False,
        pad_event_to=0,
        timestamp_key="time",
    )

    def render(logger: Any, method: str, event: EventDict) -> str:
        places = event.pop("frames", ())
        event.update({name: one_line(value) for name, value in event.items() if isinstance(value, str)})
        return "\n    ".join([lines(logger, method, event), *places])

    return render
