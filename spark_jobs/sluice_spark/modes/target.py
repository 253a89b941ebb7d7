"""What a mode needs to know of the table it commits to."""

from dataclasses import dataclass

from sluice.contract.schema import TableSchema
from sluice_spark.lake.handover import Handover
from sluice_spark.lake.table import LakeTable


@dataclass(frozen=True, slots=True)
class Target:
    """One lake table in the schema version that is applied now, and the marker's application id.
    `removals_sent`: a key that is inserted is free in it.
    """

    lake: LakeTable
    handover: Handover
    schema: TableSchema
    app_id: str
    removals_sent: bool
    metadata: bool = True
