"""The kinds of lake tables that the configuration can ask for. (docs/how-to/kinds.md: how to add one.)"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LakeKind:
    """`what` such a table does, for people, and the `module` whose KIND makes it.

    With `keeps_changes` its rows are changes as they were sent: they need whole old rows for ever, and none of
    them is a row of the source that could be compared and read again. `takes` are the settings of a target that mean
    something for this kind, besides those that every kind has.
    """

    name: str
    what: str
    module: str
    keeps_changes: bool = False
    takes: tuple[str, ...] = ()


KINDS: dict[str, LakeKind] = {
    kind.name: kind
    for kind in (
        LakeKind(
            "mirror", "keeps current rows", "sluice_spark.kinds.mirror", takes=("deletes", "soft_delete_retention")
        ),
        LakeKind("changelog", "appends every change", "sluice_spark.kinds.changelog", keeps_changes=True),
        LakeKind("history", "keeps every version of each row", "sluice_spark.kinds.history", takes=("track",)),
    )
}
"""By name. A kind is registered by its line here; the first one is the default."""

DEFAULT = next(iter(KINDS))
