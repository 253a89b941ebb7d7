"""Spans on their way to the collector: made and sent by one thread beside the work.

Invariant: `stored` and `visible` cost a place in a queue. Reading messages, making spans and sending them happen in
the thread of the outbox.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from sluice.errors import UsageError
from sluice.store.base import ObjectStore
from sluice.telemetry.catalogue import TRACE_SPANS
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.outbox import NotTaken, Outbox
from sluice.tracing.contexts import contexts_of
from sluice.tracing.spans import Published, Span, SpanId, when_stored, when_visible

SECONDS = 10.0
"""For one request, with what the library tries again."""
CLOSE_SECONDS = 2.0
Send = Callable[[Sequence[Span]], None]


@dataclass(slots=True)
class _Stage:
    """Spans that are made later: `count` of them, or at least so many before they are made."""

    make: Callable[[], list[Span]]
    count: int


class Tracer:
    """Of one process of one pipeline. `send` is what `otlp_sender` makes. `counted` is given "sent" or "dropped" and
    how many spans, from any thread.
    """

    def __init__(self, send: Send, *, pipeline: str, store: ObjectStore, counted: Callable[[str, int], None]) -> None:
        self._pipeline, self._store, self._send = pipeline, store, send
        self._outbox: Outbox[_Stage] = Outbox(
            self._deliver, to="traces", counted=counted, weight=lambda stage: stage.count
        )

    def stored(self, entry: Published) -> None:
        """`entry` is durable. From any thread."""
        self._outbox.put(_Stage(lambda: when_stored(entry, contexts_of(self._store, entry), self._pipeline), 2))

    def visible(self, entry: Published, *, at: float, left_out: int) -> None:
        """Its changes can be read in all lake tables that follow. From any thread."""

        def make() -> list[Span]:
            contexts = contexts_of(self._store, entry)
            return when_visible(entry, contexts, self._pipeline, visible_at=at, left_out=left_out)

        self._outbox.put(_Stage(make, 1))

    def close(self) -> None:
        """Sends what waits, if that takes no longer than CLOSE_SECONDS."""
        self._outbox.close(seconds=CLOSE_SECONDS)

    def _deliver(self, stages: Sequence[_Stage]) -> None:
        spans: list[Span] = []
        for stage in stages:
            made = stage.make()
            stage.count = len(made)
            spans += made
        self._send(spans)


def otlp_sender(url: str, headers: Mapping[str, str], *, pipeline: str, component: str) -> Send:
    """Sends spans to a collector at `url` by OTLP over HTTP. Raises UsageError without the libraries."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
    except ImportError as error:
        raise UsageError(
            "telemetry.traces needs OpenTelemetry, which this installation lacks", hint="pip install 'sluice-cdc[otel]'"
        ) from error
    # What the exporter logs quotes the answer of the collector; the outbox says what there is to say.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers) or None, timeout=SECONDS)
    about = {"service.name": "sluice", "service.version": version("sluice-cdc")}
    resource = Resource.create({**about, "sluice.pipeline": pipeline, "sluice.component": component})
    scope = InstrumentationScope("sluice", version("sluice-cdc"))

    def context(of: SpanId) -> SpanContext:
        return SpanContext(int(of.trace, 16), int(of.span, 16), is_remote=False, trace_flags=TraceFlags(1))

    def finished(span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=context(span.id),
            parent=context(span.parent) if span.parent else None,
            resource=resource,
            attributes=dict(span.attributes),
            links=[Link(context(link)) for link in span.links],
            kind=SpanKind.INTERNAL,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    def send(spans: Sequence[Span]) -> None:
        if exporter.export([finished(span) for span in spans]) is not SpanExportResult.SUCCESS:
            raise NotTaken("the collector was not reached, or refused the spans")

    return send


def tracer_for(
    url: str, headers: Mapping[str, str], *, store: ObjectStore, metrics: Metrics, pipeline: str
) -> Tracer | None:
    """Of the process whose `metrics` these are; None without a `url`. Raises UsageError without the libraries."""
    for outcome in TRACE_SPANS.labels["outcome"]:
        metrics.add(TRACE_SPANS, 0, outcome=outcome)
    if not url:
        return None
    return Tracer(
        otlp_sender(url, headers, pipeline=pipeline, component=metrics.component),
        pipeline=pipeline,
        store=store,
        counted=lambda outcome, spans: metrics.add(TRACE_SPANS, spans, outcome=outcome),
    )
