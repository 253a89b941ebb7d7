"""What a collector received by OTLP, decoded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.collector import Request


@dataclass(frozen=True)
class Seen:
    """One span. Identifiers are hexadecimal, links are (trace, span)."""

    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    component: str

    @property
    def seq(self) -> int:
        return int(self.attributes["sluice.entry.seq"])


def spans_of(requests: Iterable[Request]) -> list[Seen]:
    found = []
    for request in requests:
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert about["service.name"] == "sluice"
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                    found.append(
                        Seen(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            values,
                            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                            about["sluice.component"],
                        )
                    )
    return found
