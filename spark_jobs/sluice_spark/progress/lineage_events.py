"""OpenLineage events as the specification has them: which tables of PostgreSQL feed which lake tables and columns.

Pure. An event says everything that there is at its time, so that none depends on one that was lost. It holds names,
types, positions and kinds of rules: no value of a row, and no constant of a rule.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sluice import lsn
from sluice.contract.applied import AppliedTable
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.table_state import State
from sluice.manifest.values import TableState

Json = dict[str, Any]

_SPEC = "https://openlineage.io/spec/"
_EVENT = f"{_SPEC}2-0-2/OpenLineage.json#/$defs/RunEvent"
_CUSTOM = f"{_SPEC}2-0-2/OpenLineage.json#/$defs/DatasetFacet"
"""Ours have a form of their own, beside what every facet has."""
_MESSAGES = "0"
"""The table of logical messages, as `sluice.tables.messages` has it: no table of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tables are: `source` is HOST:PORT of the server."""

    source: str
    database: str
    lake_uri: str

    def source_table(self, table: TableState) -> Json:
        return {
            "namespace": f"postgres://{self.source}",
            "name": f"{self.database}.{table.schema_name}.{table.table_name}",
        }

    def lake_table(self, path: str) -> Json:
        parts = urlsplit(self.lake_uri)
        if parts.scheme == "file":
            return {"namespace": "file", "name": f"{url2pathname(parts.path).rstrip('/')}/{path}"}
        below = parts.path.strip("/")
        return {
            "namespace": f"{parts.scheme}://{parts.netloc}",
            "name": f"{below}/{path}" if below else path,
        }


@dataclass(frozen=True, slots=True)
class LineageTable:
    """One lake table: what the manifest and the applier know of it, and its columns (name, type)."""

    state: TableState
    row: AppliedTable
    columns: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> TableSchema:
        return self.state.schemas[self.row.schema_version or self.state.schema_version]


def event(
    kind: str,
    *,
    at: str,
    run_id: str,
    namespace: str,
    pipeline: str,
    place: Place,
    tables: Iterable[LineageTable],
    error: str = "",
) -> Json:
    """An event of `kind` (START, RUNNING, COMPLETE or FAIL, which says why by `error`) at a time in ISO 8601."""
    tables = [table for table in tables if table.row.state != State.DETACHED]
    sources = {table.state.table_id: table for table in tables if table.state.table_id != _MESSAGES}
    run: Json = {
        "processing_engine": _facet(
            "facets/1-1-1/ProcessingEngineRunFacet", version=version("sluice-cdc"), name="Sluice"
        )
    }
    if error:
        run["errorMessage"] = _facet("facets/1-0-1/ErrorMessageRunFacet", message=error, programmingLanguage="PYTHON")
    job_type = _facet(
        "facets/2-0-4/JobTypeJobFacet", processingType="STREAMING", integration="SLUICE", jobType="PIPELINE"
    )
    return {
        "eventType": kind,
        "eventTime": at,
        "producer": _producer(),
        "schemaURL": _EVENT,
        "run": {"runId": run_id, "facets": run},
        "job": {"namespace": namespace, "name": pipeline, "facets": {"jobType": job_type}},
        "inputs": [_input(table, place) for table in sources.values()],
        "outputs": [_output(table, place) for table in tables],
    }


def _input(table: LineageTable, place: Place) -> Json:
    columns = [(column.name, column.type_name) for column in table.schema.sent]
    position = _ours(throughLsn=lsn.show(table.row.complete_through_lsn))
    return {
        **place.source_table(table.state),
        "facets": {"schema": _schema(columns), "sluice_position": position},
    }


def _output(table: LineageTable, place: Place) -> Json:
    row, facets = table.row, {"schema": _schema(table.columns)}
    if table.state.table_id != _MESSAGES:
        facets["columnLineage"] = _column_lineage(table, place)
    if row.delta_version >= 0:
        facets["version"] = _facet("facets/1-0-1/DatasetVersionDatasetFacet", datasetVersion=str(row.delta_version))
    facets["sluice_position"] = _ours(
        completeThroughLsn=lsn.show(row.complete_through_lsn),
        deltaVersion=row.delta_version,
        kind=row.mode,
        state=str(row.state),
        generation=row.generation,
    )
    rules = _rules(table.schema)
    if rules:
        facets["sluice_columnRules"] = _ours(rules=rules)
    return {**place.lake_table(row.path), "facets": facets}


def _rules(schema: TableSchema) -> list[Json]:
    stored = [(column.name, column.rule.kind.value) for column in schema.columns if column.rule is not None]
    left_out = [(one.column.name, "exclude") for one in schema.excluded]
    return [{"column": name, "rule": rule} for name, rule in (*stored, *left_out)]


def _column_lineage(table: LineageTable, place: Place) -> Json:
    source = place.source_table(table.state)
    there = {name for name, _ in table.columns}
    columns = [column for column in table.schema.columns if column.name in there]
    fields = {
        column.name: {"inputFields": [{**source, "field": column.name, "transformations": [_transformation(column)]}]}
        for column in columns
    }
    return _facet("facets/1-2-0/ColumnLineageDatasetFacet", fields=fields)


def _transformation(column: ColumnSchema) -> Json:
    if column.rule is None:
        return {"type": "DIRECT", "subtype": "IDENTITY", "masking": False}
    return {"type": "DIRECT", "subtype": "TRANSFORMATION", "description": column.rule.kind.value, "masking": True}


def _schema(columns: Iterable[tuple[str, str]]) -> Json:
    fields = [{"name": name, "type": kind, "ordinal_position": place} for place, (name, kind) in enumerate(columns, 1)]
    return _facet("facets/1-2-0/SchemaDatasetFacet", fields=fields)


def _facet(where: str, **values: Any) -> Json:
    name = where.rpartition("/")[2]
    return {"_producer": _producer(), "_schemaURL": f"{_SPEC}{where}.json#/$defs/{name}", **values}


def _ours(**values: Any) -> Json:
    return {"_producer": _producer(), "_schemaURL": _CUSTOM, **values}


def _producer() -> str:
    return f"urn:sluice:{version('sluice-cdc')}"
