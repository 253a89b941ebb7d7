"""Which mode a lake table has, by configuration and by what its source table can send. Pure."""

from collections.abc import Iterable

from sluice.contract import envelope
from sluice.contract.evolution import refuse_alike
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.lake.columns import changelog_columns, mirror_columns
from sluice_spark.options import CHANGELOG, MIRROR, ApplyOptions

ROWS_MODE = "mirror of whole rows"


def mode_of(options: ApplyOptions, schema: TableSchema) -> str:
    """What the lake table of `schema` holds: MIRROR, CHANGELOG or ROWS_MODE."""
    configured = options.mode_of(schema.qualified_name)
    return configured if configured == CHANGELOG or schema.key_columns else ROWS_MODE


def other_mode(options: ApplyOptions, state: TableState, columns: Iterable[str]) -> Reason | None:
    """Why a lake table that has these columns is not what the configuration asks for, None when it
    is. The columns decide what the table holds, not a report about it.
    """
    schema = state.schemas[state.schema_version]
    held, wanted = (CHANGELOG if envelope.OP in columns else MIRROR), mode_of(options, schema)
    if (held == CHANGELOG) == (wanted == CHANGELOG):
        return None
    return Reason(ReasonCode.OTHER_MODE, {"held": held, "wanted": wanted})


def lake_columns(options: ApplyOptions, schema: TableSchema) -> list[tuple[str, str]]:
    """The columns (name, Spark type) of the lake table of `schema`, in order."""
    if mode_of(options, schema) == CHANGELOG:
        return changelog_columns(schema)
    return mirror_columns(schema, metadata=options.metadata_columns)


def snapshot_columns(options: ApplyOptions, schema: TableSchema) -> list[tuple[str, str]]:
    """The columns of the table that a snapshot makes. Raises UnsupportedChange when Delta cannot
    have such a table.
    """
    refuse_alike(schema)
    columns = lake_columns(options, schema)
    if not columns:
        raise UnsupportedChange(
            f"{schema.qualified_name}: the lake table would have no column, because no column of the "
            "source table is published and lake.metadata_columns is off;"
            " turn that on and resync the table, or remove it from source.tables"
        )
    return columns
