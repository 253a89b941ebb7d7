"""The life of one applier as a run of OpenLineage: START, RUNNING at a rhythm, COMPLETE or FAIL.

Owns that an event is made from one moment of the ledger, in the applier's loop, and posted by a thread beside it. The
events are posted by the standard library: the documented JSON is all that a client would add. A process that is killed
leaves its run without an end.
"""

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sluice.telemetry.catalogue import LINEAGE_EVENTS
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.outbox import NotTaken, Outbox
from sluice_spark.kinds.registry import kind_of
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.lineage_events import Json, LineageTable, Place, event

SECONDS = 10.0
"""For one request."""
CLOSE_SECONDS = 2.0
PAUSES_SECONDS = (1.0, 5.0, 30.0)
"""After which an event that was not taken is posted again."""
LIMIT = 64
"""Events that may wait: each says all that there is."""


class Lineage:
    """One run."""

    def __init__(
        self, options: ApplyOptions, ledger: Ledger, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options, self._ledger, self._clock = options, ledger, clock
        self._run_id = str(uuid.uuid4())
        self._outbox: Outbox[Json] = Outbox(
            self._post,
            to="lineage",
            counted=lambda outcome, events: metrics.add(LINEAGE_EVENTS, events, outcome=outcome),
            pauses=PAUSES_SECONDS,
            limit=LIMIT,
            at_once=1,
        )
        self._next = clock() + options.lineage_seconds

    def begin(self) -> None:
        """The run begins."""
        self._say("START")

    def look(self) -> None:
        """The loop goes round."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._options.lineage_seconds
            self._say("RUNNING")

    def close(self, error: str) -> None:
        """The run ends: well, or with an `error`."""
        self._say("FAIL" if error else "COMPLETE", error)
        self._outbox.close(seconds=CLOSE_SECONDS)

    def _say(self, kind: str, error: str = "") -> None:
        options, ledger = self._options, self._ledger
        opened = ledger.state.opened
        tables = []
        for key, row in ledger.report().items():
            state = ledger.state.tables[key]
            schema = state.schemas[row.schema_version or state.schema_version]
            columns = kind_of(state, schema).columns(schema.carried, metadata=options.metadata_columns)
            tables.append(LineageTable(state, row, tuple(columns)))
        self._outbox.put(
            event(
                kind,
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                run_id=self._run_id,
                namespace=options.lineage_namespace,
                pipeline=options.pipeline,
                place=Place(options.lineage_source, opened.database if opened is not None else "", options.lake_uri),
                tables=tables,
                error=error,
            )
        )

    def _post(self, events: Sequence[Json]) -> None:
        (body,) = (json.dumps(one).encode() for one in events)
        options = self._options
        headers = {"Content-Type": "application/json", **options.lineage_headers}
        request = urllib.request.Request(  # noqa: S310 - the settings take http and https alone
            options.lineage, data=body, headers=headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                answer.read(1)
        except urllib.error.HTTPError as error:
            raise NotTaken(f"it answered with status {error.code}") from error
        except (OSError, ValueError) as error:
            raise NotTaken(f"it was not reached ({type(error).__name__})") from error
