"""The end of a replay: what was made, said on stdout, and every reason why it is not all.

Invariant: a replay that ends with 0 has made every table of its lake, each through its position.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from sluice.contract.applied import AppliedTable
from sluice.contract.reasons import ReasonCode, sentence
from sluice.contract.replay import ANEW
from sluice.contract.table_state import State
from sluice.errors import ApplyError, Interrupted, ManifestCorrupt, UsageError, WriterFenced
from sluice.lsn import show
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import objects_pruned_through
from sluice.store.base import ObjectStore
from sluice_spark import storage
from sluice_spark.options import ApplyOptions

_AGAIN = "give the same command again: it goes on"


@contextmanager
def watched(options: ApplyOptions, store: ObjectStore) -> Iterator[None]:
    """Says of a replay that fails inside the block whether the spool lost what it needs, or another process makes the
    same one. Nothing for an applier.
    """
    if options.ending is None:
        yield
        return
    try:
        yield
    except WriterFenced as error:
        raise WriterFenced("another process makes this replay", hint="wait until it has ended") from error
    except (ApplyError, ManifestCorrupt) as error:
        if (pruned := objects_pruned_through(store)) >= options.first_seq:
            raise UsageError(
                f"the spool was pruned through entry {pruned} while the replay needed it: {error}",
                hint=f"{ANEW} with a longer spool.retention",
            ) from error
        raise


def finish(options: ApplyOptions, store: ObjectStore, session: SparkSession, *, stopped: bool) -> None:
    """Says on stdout what was made. Raises Interrupted when it was `stopped` before the end, and as `made` does."""
    if stopped:
        raise Interrupted("the replay was stopped before it was complete", hint=_AGAIN)
    print(json.dumps(made(options, store, session), ensure_ascii=False), flush=True)


def made(options: ApplyOptions, store: ObjectStore, session: SparkSession) -> dict[str, Any]:
    """What was made. Raises ApplyError for a table that is not there as a whole yet, UsageError for one that never
    will be.
    """
    log = newest_log(store).read()
    # A table that is detached there was asked for by nobody: one that came later has its name.
    known = [row for row in (log.tables.values() if log is not None else ()) if row.state is not State.DETACHED]
    rows = sorted(known, key=lambda row: row.title)
    for row in rows:
        if row.state is State.STALE:
            raise _never(row)
        if row.state is not State.LIVE or row.complete_through_lsn < options.last_lsn:
            raise ApplyError(f"{row.title} was not made: it is {row.state}; {row.reason}", hint=_AGAIN)
    return {
        "schema_version": 1,
        "pipeline": options.pipeline,
        "lake": options.lake_uri,
        "lsn": show(options.last_lsn),
        "entry": options.last_seq,
        "tables": [_made(options, row, session) for row in rows],
    }


def _never(row: AppliedTable) -> UsageError:
    """What is pruned is no reason to read the table of the pipeline again, as the row's own reason advises."""
    if row.why is not None and row.why.code is ReasonCode.PRUNED:
        return UsageError(
            f"{row.title} cannot be made: the spool was pruned through entry {row.why.parameters['floor']}, and the "
            f"replay goes on from entry {row.why.parameters['entry']}",
            hint=f"{ANEW} with a longer spool.retention",
        )
    reason = sentence(row.why, row.state, f"{row.schema_name}.{row.table_name}", remedy=ANEW)
    return UsageError(f"{row.title} cannot be made: it is stale; {reason}", hint=ANEW)


def _made(options: ApplyOptions, row: AppliedTable, session: SparkSession) -> dict[str, Any]:
    path = storage.join(options.lake_uri, row.path)
    frame = session.read.format("delta").option("versionAsOf", row.delta_version).load(path)
    return {
        "table": f"{row.schema_name}.{row.table_name}",
        "target": row.target or None,
        "kind": row.mode,
        "path": row.path,
        "generation": row.generation,
        "rows": frame.count(),
        "version": row.delta_version,
        "lsn": show(row.complete_through_lsn),
    }
