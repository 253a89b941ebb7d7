"""Which kind a lake table is, by configuration and by what its source table can send."""

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module

from sluice.contract.evolution import refuse_alike
from sluice.contract.lake_kinds import KINDS
from sluice.contract.lake_layout import MAPPING, refused_unmapped
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.manifest.targets import fed
from sluice.manifest.values import TableState
from sluice_spark.kinds.kind import Kind
from sluice_spark.options import ApplyOptions


def registered(name: str) -> Kind:
    """The kind that the configuration calls `name`, as it is when nothing more is configured."""
    kind: Kind = import_module(KINDS[name].module).KIND
    return kind


def kind_of(state: TableState, schema: TableSchema) -> Kind:
    """What the lake table of `state` holds, which is one of a pipeline's lake tables, in the version `schema`."""
    target = fed(state)
    if target.track:
        target = replace(target, track=_names_of(target.track, state, schema))
    return registered(target.kind).configured(target).of(schema)


def _names_of(track: Iterable[str], state: TableState, schema: TableSchema) -> tuple[str, ...]:
    """The configured columns as `schema` calls them. The configuration names them as one version of the table does,
    and a window may be of an earlier one, or a later one. Several columns may have had one name, one after the other:
    each of them is meant, so that what makes a version does not depend on how much of the log is known yet. Names that
    no version has stay.
    """
    numbers: dict[str, set[int]] = {}
    for one in (*state.schemas.values(), schema):
        for column in one.columns:
            numbers.setdefault(column.name, set()).add(column.attnum)
    known = {number for name in track for number in numbers.get(name, ())}
    found = [column.name for column in schema.columns if column.attnum in known]
    found += [name for name in track if name not in numbers]
    # None of them is there yet, or any more. No column would mean all of them; the key says that nothing is tracked.
    return tuple(found or (column.name for column in schema.key_columns))


def other_kind(state: TableState, columns: Iterable[str]) -> Reason | None:
    """Why a lake table that has these columns is not what the configuration asks for, None when it
    is. The columns decide what the table holds, not a report about it.
    """
    wanted, present = kind_of(state, state.schemas[state.schema_version]), set(columns)
    every = [kind for name in KINDS for kind in (registered(name), *registered(name).variants)]
    kinds = sorted(every, key=lambda kind: not kind.sign)
    held = next(kind for kind in kinds if not kind.sign or kind.sign in present)
    if held.sign == wanted.sign:
        return None
    return Reason(ReasonCode.OTHER_MODE, {"held": held.name, "wanted": wanted.name})


def lake_columns(options: ApplyOptions, state: TableState, schema: TableSchema) -> list[tuple[str, str]]:
    """The columns (name, Spark type) of the lake table of `state` in the version `schema`, in order. Raises
    UnsupportedChange for a name that they cannot have.
    """
    columns = kind_of(state, schema).columns(schema, metadata=options.metadata_columns)
    if MAPPING in state.layout.without and (said := refused_unmapped(name for name, _ in columns)):
        raise UnsupportedChange(f"{schema.qualified_name}: {said}", hint="correct properties in the configuration")
    return columns


def snapshot_columns(options: ApplyOptions, state: TableState, schema: TableSchema) -> list[tuple[str, str]]:
    """The columns of the table that a snapshot makes. Raises UnsupportedChange when Delta cannot
    have such a table.
    """
    refuse_alike(schema)
    kind_of(state, schema).require(schema)
    columns = lake_columns(options, state, schema)
    if not columns:
        raise UnsupportedChange(
            f"{schema.qualified_name}: the lake table would have no column, because no column of the "
            "source table is published and lake.metadata_columns is off;"
            " turn that on and resync the table, or remove it from source.tables"
        )
    return columns
