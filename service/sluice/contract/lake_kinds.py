"""The kinds of lake tables that the configuration can ask for. (docs/how-to/kinds.md: how to add one.)"""

from dataclasses import dataclass, replace

from sluice.contract import envelope


@dataclass(frozen=True, slots=True)
class LakeKind:
    """`what` such a table does, for people, and the `module` whose KIND makes it.

    With `keeps_changes` its rows are changes as they were sent: they need whole old rows for ever, and none of
    them is a row of the source that could be compared and read again. `takes` are the settings of a target that mean
    something for this kind, besides those that every kind has. `adds` are columns that the lake table may have
    beside those of its source table, and `adds_metadata` those that it has with `lake.metadata_columns` alone.
    With `needs_key` rows are known again by the key of their source table, which must have one. `compared` is what a
    row is called that a comparison looks at.
    """

    name: str
    what: str
    module: str
    keeps_changes: bool = False
    takes: tuple[str, ...] = ()
    adds: tuple[str, ...] = (envelope.SPECIAL,)
    adds_metadata: tuple[str, ...] = ()
    needs_key: bool = False
    compared: str = "row"


KINDS: dict[str, LakeKind] = {
    kind.name: kind
    for kind in (
        LakeKind(
            "mirror",
            "keeps current rows",
            "sluice_spark.kinds.mirror",
            takes=("deletes", "soft_delete_retention"),
            adds_metadata=(envelope.LSN, envelope.TS),
        ),
        LakeKind(
            "changelog",
            "appends every change",
            "sluice_spark.kinds.changelog",
            keeps_changes=True,
            adds=(
                envelope.OP,
                envelope.LSN,
                envelope.TS,
                envelope.ORDINAL,
                envelope.XID,
                envelope.SNAPSHOT,
                envelope.ORIGIN,
                envelope.ORIGIN_LSN,
                envelope.SPECIAL,
                envelope.UNCHANGED,
                envelope.OLD_SPECIAL,
            ),
        ),
        LakeKind(
            "history",
            "keeps every version of each row",
            "sluice_spark.kinds.history",
            takes=("track",),
            adds=(
                envelope.VALID_FROM,
                envelope.VALID_TO,
                envelope.FROM_LSN,
                envelope.TO_LSN,
                envelope.IS_CURRENT,
                envelope.SPECIAL,
            ),
            compared="current version",
            needs_key=True,
        ),
    )
}
"""By name. A kind is registered by its line here; the first one is the default."""

DEFAULT = next(iter(KINDS))

WHOLE_ROWS, SOFT_DELETES = "mirror of whole rows", "mirror with soft deletes"
"""What a mirror of a table without a key is called, and one that keeps deleted rows."""

SOFT = replace(
    KINDS[DEFAULT],
    name=SOFT_DELETES,
    adds=(envelope.DELETED_AT, envelope.SPECIAL),
    needs_key=True,
    compared="undeleted row",
)
"""A mirror that keeps deleted rows."""
