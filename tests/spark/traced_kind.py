"""A kind of lake table for the tests, made as docs/how-to/kinds.md says: a mirror whose rows say which transaction
changed them last.
"""

from sluice.contract import envelope
from sluice.contract.lake_kinds import LakeKind
from sluice_spark.kinds.mirror import Mirror


class Traced(Mirror):
    name = "traced"
    sign = envelope.XID
    carried = (envelope.XID,)


KIND = Traced()
LINE = LakeKind("traced", "says what changed each row", __name__)
