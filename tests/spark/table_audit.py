"""What the protocol and data skipping demand of a Delta table beside its rows, checked against its files."""

import datetime as dt
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.protocol_reader import Action, DeltaFolder, File, State, field_id

_HIDDEN = ("_change_type", "__is_cdc", "_row-id-col-", "_row-commit-version-col-")
"""Columns of the change data feed and of row tracking, which may be off by now. No schema names them."""
_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


def check_files(state: State) -> None:
    """Names and ids of columns, numbers of rows and statistics of every live file."""
    ids = [one["metadata"][_ID] for one in _all_fields(state.fields)]
    assert len(ids) == len(set(ids)), "two columns have one id"
    highest = int(state.metadata["configuration"]["delta.columnMapping.maxColumnId"])
    assert max(ids, default=0) <= highest, "a column's id is above the table's highest"
    for file in state.files:
        _check_columns(state, file)
        _check_statistics(state, file)


def live_files(state: State) -> set[Path]:
    """The files that the table needs: data and vectors."""
    return {file.path for file in state.files} | {file.vector for file in state.files if file.vector}


def _all_fields(fields: Iterable[Action]) -> list[Action]:
    found = []
    for one in fields:
        found.append(one)
        if isinstance(one["type"], dict) and one["type"]["type"] == "struct":
            found += _all_fields(one["type"]["fields"])
    return found


def _check_columns(state: State, file: File) -> None:
    known = {one["metadata"][_NAME]: one for one in state.fields}
    for one in pq.ParquetFile(file.path).schema_arrow:
        if one.name.startswith(_HIDDEN):
            continue
        assert one.name in known, f"{file.path.name} has a column {one.name} that the table does not have"
        _check_field(one, known[one.name], file)


def _check_field(one: pa.Field, column: Action, file: File) -> None:
    where = f"{column['name']} in {file.path.name}"
    assert field_id(one) == column["metadata"][_ID], f"{where} has field id {field_id(one)}, not the table's"
    kind = column["type"]
    if isinstance(kind, str):
        assert _spelling(one.type) == kind, f"{where} is {one.type}, the table says {kind}"
    elif kind["type"] == "struct":
        inner = {item["metadata"][_NAME]: item for item in kind["fields"]}
        for place in range(one.type.num_fields):
            _check_field(one.type.field(place), inner[one.type.field(place).name], file)
    elif kind["type"] == "array":
        assert _spelling(one.type.value_type) == kind["elementType"], f"{where} is {one.type}"
    else:
        assert pa.types.is_map(one.type), f"{where} is {one.type}"


def _spelling(kind: pa.DataType) -> str:
    """As Delta spells it."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        assert kind.unit == "us", kind
        return "timestamp" if kind.tz else "timestamp_ntz"
    names = {
        "bool": "boolean", "int8": "byte", "int16": "short", "int32": "integer", "int64": "long", "float": "float",
        "double": "double", "string": "string", "binary": "binary", "date32[day]": "date",
    }  # fmt: skip
    return names[str(kind)]


def _check_statistics(state: State, file: File) -> None:
    table = state.read(file)
    stats = file.stats
    assert stats, f"{file.path.name} has no statistics"
    assert stats["numRecords"] == len(table), f"{file.path.name} has {len(table)} rows, not {stats['numRecords']}"
    assert len(file.deleted) < len(table) or not len(table), f"{file.path.name} is live without a live row"
    is_tight = stats.get("tightBounds", True)
    assert not (file.deleted and is_tight), f"{file.path.name} has a vector, and its bounds are called tight"
    live = table.take(pa.array(np.setdiff1d(np.arange(len(table)), sorted(file.deleted))))
    for column in state.fields:
        name, values = column["metadata"][_NAME], live[column["name"]]
        where = f"{column['name']} in {file.path.name}"
        nulls = stats.get("nullCount", {}).get(name)
        if isinstance(nulls, int):
            if is_tight:
                assert nulls == values.null_count, f"{where} has {values.null_count} NULLs, not {nulls}"
            elif nulls in (0, len(table)):
                assert values.null_count == (len(values) if nulls else 0), f"{where} has not {nulls} NULLs"
        if isinstance(column["type"], str):
            low, high = stats.get("minValues", {}).get(name), stats.get("maxValues", {}).get(name)
            _check_bounds(values.drop_null().to_pylist(), column["type"], low, high, where)


def _check_bounds(values: list[Any], kind: str, low: Any, high: Any, where: str) -> None:
    """Every value is between the bounds, as a reader that prunes by them compares."""
    if kind in ("float", "double"):
        values, low, high = [_number(value, kind) for value in values], _number(low, kind), _number(high, kind)
        assert high is None or high[0] or not any(value[0] for value in values), f"{where} has NaN, which sorts last"
    else:
        low, high = _bound(low, kind), _bound(high, kind)
    if not values:
        return
    if kind.startswith("timestamp") and high is not None:
        # Bounds may be cut to milliseconds, and readers know that.
        high = high.replace(microsecond=high.microsecond // 1000 * 1000 + 999)
    if kind == "string":
        # By bytes, as Spark compares.
        values, low, high = [value.encode() for value in values], _encoded(low), _encoded(high)
    assert low is None or low <= min(values), f"the least value of {where} is below its bound"
    assert high is None or high >= max(values), f"the greatest value of {where} is above its bound"


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _bound(text: Any, kind: str) -> Any:
    if text is None:
        return None
    if kind == "date":
        return dt.date.fromisoformat(text)
    if kind.startswith("timestamp"):
        found = dt.datetime.fromisoformat(text)
        return found.replace(tzinfo=None) if kind == "timestamp_ntz" else found.astimezone(dt.UTC)
    if kind.startswith("decimal"):
        return Decimal(str(text))
    assert kind in ("string", "byte", "short", "integer", "long"), f"no bounds are known for {kind}"
    return text


def _number(value: Any, kind: str) -> tuple[bool, float] | None:
    """NaN sorts behind all others. A text of a `float` is read as one."""
    if value is None:
        return None
    found = float(np.float32(value)) if kind == "float" else float(value)
    return (True, 0.0) if found != found else (False, found)


def check_checksum(table: DeltaFolder, version: int) -> None:
    """The checksum file of `version` agrees with the state that the commits make."""
    stated = table.checksum(version)
    assert stated is not None, f"version {version} has no checksum file"
    state = table.state(version, checkpoints=False) if 0 in table.versions() else table.state(version)
    adds = list(state.adds.values())
    assert stated["numFiles"] == len(adds), (
        f"version {version}: {len(adds)} files, the checksum says {stated['numFiles']}"
    )
    assert stated["tableSizeBytes"] == sum(add["size"] for add in adds), f"version {version}: another size"
    assert stated["numMetadata"] == stated["numProtocol"] == 1
    assert stated["metadata"]["schemaString"] == state.metadata["schemaString"]
    assert stated["metadata"]["configuration"] == state.metadata["configuration"]
    assert stated["protocol"] == state.protocol
    markers = {one["appId"]: one["version"] for one in stated.get("setTransactions", [])}
    assert markers == state.markers, f"version {version}: other markers"
    if "allFiles" in stated:
        found = {(add["path"], json.dumps(add.get("deletionVector"), sort_keys=True)) for add in stated["allFiles"]}
        live = {(add["path"], json.dumps(add.get("deletionVector"), sort_keys=True)) for add in adds}
        assert found == live, f"version {version}: other files"
    vectors = [add["deletionVector"] for add in adds if add.get("deletionVector")]
    for name, true in (
        ("numDeletionVectorsOpt", len(vectors)),
        ("numDeletedRecordsOpt", sum(vector["cardinality"] for vector in vectors)),
    ):
        assert stated.get(name, true) == true, f"version {version}: {name} is {stated[name]}, not {true}"


def check_checkpoints(table: DeltaFolder) -> None:
    """What a checkpoint says is what the commits before it made."""
    for version in table.checkpoints() if 0 in table.versions() else ():
        short, long = (said(table.state(version, checkpoints=there)) for there in (True, False))
        assert short == long, f"the checkpoint of {version} says {short}, its commits {long}"


def said(state: State) -> object:
    """All that a log says of a table, as a checkpoint keeps it: it leaves out what nobody needs of removed files, and
    whether rows changed is said of the commit alone.
    """
    adds = {
        name: {**_without(add, "stats_parsed"), "stats": json.loads(add["stats"], parse_float=Decimal)}
        for name, add in state.adds.items()
    }
    removes = {name: _without(one, "stats", "tags") for name, one in state.removes.items()}
    features = {name: sorted(one) if isinstance(one, list) else one for name, one in state.protocol.items()}
    return adds, removes, state.markers, state.metadata, features


def _without(action: Action, *names: str) -> Action:
    return {name: value for name, value in action.items() if name not in {*names, "dataChange"}}
