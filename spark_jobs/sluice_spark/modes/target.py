"""What a mode needs to know of the table that it plans a commit for."""

from dataclasses import dataclass

from sluice.contract.entries import Opened
from sluice.contract.schema import TableSchema
from sluice.manifest.values import TableState
from sluice_spark.lake.rows_to_commit import SparkHandover
from sluice_spark.lake.table import LakeTable


@dataclass(frozen=True, slots=True)
class Target:
    """One lake table in the schema version that is applied now. `removals_sent` says that no row of
    the lake has a key that is inserted.
    """

    lake: LakeTable
    handover: SparkHandover
    schema: TableSchema
    removals_sent: bool
    metadata: bool = True


def removals_are_sent(opened: Opened | None, state: TableState) -> bool:
    """Whether the stream has every change that takes a key away from a row, so that a key that is
    inserted is free in the lake too.

    A single change does not say so: changes that a publication leaves out, or that replication
    brought to a source whose `origin` is `none`, are in no entry. A table whose publication changes
    becomes stale, and so does one that was followed with another `origin`: what holds now has held
    since the snapshot.
    """
    return opened is not None and opened.origin == "any" and set("iudt") <= set(state.publishes)
