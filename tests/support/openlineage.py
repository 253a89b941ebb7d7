"""OpenLineage events, read with the classes of its own client: what those would not write is no event."""

import json
from collections.abc import Iterable
from typing import Any

from openlineage.client import event_v2, serde
from openlineage.client.generated import (
    base,
    column_lineage_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)

from tests.support.collector import Request

Json = dict[str, Any]
_FACETS = {
    "schema": schema_dataset.SchemaDatasetFacet,
    "columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet,
    "version": dataset_version_dataset.DatasetVersionDatasetFacet,
    "errorMessage": error_message_run.ErrorMessageRunFacet,
    "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
    "jobType": job_type_job.JobTypeJobFacet,
}


def events_of(requests: Iterable[Request]) -> list[Json]:
    """The events that were posted. Raises AssertionError, TypeError or ValueError for one that is none."""
    events = [json.loads(request.body) for request in requests]
    for event in events:
        _require_event(event)
    return events


def _require_event(event: Json) -> None:
    """The client, given the same things to say, writes the same."""
    made = event_v2.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=event_v2.RunState(event["eventType"]),
        run=event_v2.Run(event["run"]["runId"], facets=_facets(event["run"]["facets"])),
        job=event_v2.Job(event["job"]["namespace"], event["job"]["name"], facets=_facets(event["job"]["facets"])),
        inputs=[event_v2.InputDataset(**{**one, "facets": _facets(one["facets"])}) for one in event["inputs"]],
        outputs=[event_v2.OutputDataset(**{**one, "facets": _facets(one["facets"])}) for one in event["outputs"]],
    )
    assert _without_empty(serde.Serde.to_dict(made)) == _without_empty(event)


def _facets(facets: Json) -> Json:
    return {name: _facet(name, facet) for name, facet in facets.items()}


def _facet(name: str, facet: Json) -> Any:
    producer = facet["_producer"]
    values = {key: value for key, value in facet.items() if not key.startswith("_")}
    if name in _FACETS:
        return _FACETS[name](**values, producer=producer)
    assert name.startswith("sluice_"), "a facet of our own has our prefix"
    return base.DatasetFacet(producer=producer).with_additional_properties(**values)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: made for key, one in value.items() if (made := _without_empty(one)) not in (None, [], {})}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value
