"""Logical messages as rows: pg_logical_emit_message ends up in a lake table of its own,
`_sluice/messages`.

Invariant: content stays bytes, as emitted; a transactional message is published with its
transaction and vanishes with it, any other stands alone at its own position. The table has no key
and only grows, so it is a changelog. Messages come from whoever may connect to the database:
nothing here acts on them. (PostgreSQL: Replication Management Functions, pg_logical_emit_message.)
"""

import json
import re
from collections.abc import Callable, Sequence
from fnmatch import translate

from sluice.contract import keys
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.contract.table_state import State
from sluice.contract.types import lake_type
from sluice.manifest.values import PipelineState
from sluice.protocol.messages import DDL_SIGNAL
from sluice.tables.schemas import relation_sent_as

TABLE_ID = "0"
"""No relation has this oid."""
IN_DOUBT = "in_doubt"
_COLUMNS = (
    ("lsn", 20, "bigint"),
    ("prefix", 25, "text"),
    ("transactional", 16, "boolean"),
    ("content", 17, "bytea"),
    (IN_DOUBT, 16, "boolean"),
)

SCHEMA = TableSchema(
    table_id=TABLE_ID,
    version=1,
    schema_name="_sluice",
    table_name="messages",
    replica_identity="n",
    columns=tuple(
        ColumnSchema(name, attnum, oid, -1, spelling, lake_type(oid, -1))
        for attnum, (name, oid, spelling) in enumerate(_COLUMNS, 1)
    ),
)
"""`lsn` is the message's own position; the commit's is in the envelope. IN_DOUBT is explained in
docs/messages.md.
"""

PATH = keys.lake_path(SCHEMA.schema_name, SCHEMA.table_name)
"""Its lake table's, whether messages are kept or not."""

RELATION = relation_sent_as(SCHEMA)
"""What messages come as, so that they wait in bodies and units like rows of any table."""


def brought_to(state: PipelineState, *, wanted: bool, prefixes: Sequence[str]) -> tuple[Table | Snapshot, ...]:
    """What brings the table to what the configuration says: live and empty when messages are first kept,
    detached when they no longer are.

    Messages that were not kept never come again, so that a table which is kept again, or for other
    `prefixes`, begins anew.
    """
    known, lsn = state.tables.get(TABLE_ID), state.through_lsn
    chosen = json.dumps({"prefixes": sorted(prefixes)})
    live = known is not None and known.state == State.LIVE
    if wanted and not (live and known is not None and known.fingerprint == chosen):
        generation = known.generation + 1 if known is not None else 1
        return (
            _table(State.SNAPSHOT, generation, lsn),
            Snapshot(TABLE_ID, generation, 1, lsn, (), final=True, fingerprint=chosen),
        )
    if live and not wanted and known is not None:
        return (_table(State.DETACHED, known.generation, lsn, why=Reason(ReasonCode.MESSAGES_OFF)),)
    return ()


def _table(state: State, generation: int, lsn: int, *, why: Reason | None = None) -> Table:
    return Table(TABLE_ID, SCHEMA.schema_name, SCHEMA.table_name, state, generation, why, lsn, SCHEMA)


def prefix_filter(patterns: Sequence[str], *, kept: bool = True) -> Callable[[str], bool]:
    """Whether messages are `kept`, and a message's prefix matches one of `patterns` (`*`, `?` and `[...]` as in file
    names, case kept); no patterns want every message but DDL signals.
    """
    wanted = re.compile("|".join(map(translate, patterns)))
    return lambda prefix: kept and (wanted.match(prefix) is not None if patterns else prefix != DDL_SIGNAL)
