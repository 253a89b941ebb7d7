"""Source and slot: what the server keeps for us, for how long it may, and the connection to it."""

from deploy.monitoring.alerts.slot import HEADROOM_CRITICAL, HEADROOM_WARNING, XMIN_AGE
from deploy.monitoring.dashboards.panels import GREEN, RATE, RED, YELLOW, Dashboard, Panel, Query, Row, shown
from deploy.monitoring.promql import least, over, total, worst
from sluice.telemetry import catalogue as known

_NO_LIMIT = "absent while the server sets no limit on retained WAL"
_STREAMED = "absent until the server has spilled or streamed a large transaction"

SLOT_ROW = Row(
    "Slot",
    (
        Panel(
            title="State of the slot's WAL",
            description="wal_status as the server reports it: extended is past max_wal_size, unreserved may be "
            "lost at any checkpoint, lost is permanent.",
            kind="stat",
            unit="none",
            queries=(Query(f"{worst(shown(known.SLOT_STATUS), 'status')} == 1", "{{pipeline}}: {{status}}"),),
            width=6,
            height=6,
        ),
        Panel(
            title="Slot in use",
            description="Whether a walsender serves the slot.",
            kind="stat",
            unit="none",
            queries=(Query(worst(shown(known.SLOT_ACTIVE))),),
            words=((1, "in use", GREEN), (0, "idle", RED)),
            steps=((None, RED), (1, GREEN)),
            width=4,
            height=6,
        ),
        Panel(
            title="Headroom",
            description="Share of max_slot_wal_keep_size that is left before the slot may be lost.",
            kind="gauge",
            unit="percentunit",
            queries=(Query(f"{least(shown(known.SLOT_SAFE))} / {least(shown(known.SLOT_KEEP_LIMIT))}"),),
            steps=((None, RED), (HEADROOM_CRITICAL.default / 100, YELLOW), (HEADROOM_WARNING.default / 100, GREEN)),
            least=0,
            most=1,
            width=5,
            height=6,
            quiet=_NO_LIMIT,
        ),
        Panel(
            title="Time until the slot may be lost",
            description="Forecast for a slot that advances no further while WAL is written as in the last minutes.",
            kind="stat",
            unit="s",
            queries=(Query(least(shown(known.SLOT_SECONDS_LEFT))),),
            steps=((None, RED), (3600, YELLOW), (14400, GREEN)),
            width=5,
            height=6,
            quiet=f"{_NO_LIMIT}, and while nothing is written",
        ),
        Panel(
            title="Limit on retained WAL",
            description="1 when max_slot_wal_keep_size is -1, so that only the server's disk is the limit.",
            kind="stat",
            unit="none",
            queries=(Query(worst(shown(known.SLOT_UNBOUNDED))),),
            words=((1, "none set", YELLOW), (0, "set", GREEN)),
            steps=((None, GREEN), (1, YELLOW)),
            width=4,
            height=6,
        ),
    ),
)

WAL_ROW = Row(
    "WAL",
    (
        Panel(
            title="WAL kept and WAL left",
            description="What the server keeps for the slot, and what can still be written before the slot may "
            "be lost.",
            unit="bytes",
            queries=(
                Query(worst(shown(known.SLOT_RETAINED)), "{{pipeline}} kept"),
                Query(least(shown(known.SLOT_SAFE)), "{{pipeline}} left"),
            ),
        ),
        Panel(
            title="Behind the server, by stage",
            description="WAL between the server's position and ours: received, durable in the spool, in the lake.",
            unit="bytes",
            queries=(Query(worst(shown(known.LAG_BYTES), "stage"), "{{pipeline}} {{stage}}"),),
        ),
        Panel(
            title="WAL written and acknowledged",
            description="Bytes a second by which the server's position, our durable position and the "
            "acknowledged one advance.",
            unit="Bps",
            queries=tuple(
                Query(worst(over("deriv", shown(metric), RATE)), f"{{{{pipeline}}}} {name}")
                for metric, name in (
                    (known.SOURCE_WAL_LSN, "written"),
                    (known.FLUSHED_LSN, "durable"),
                    (known.CONFIRMED_FLUSH_LSN, "acknowledged"),
                )
            ),
        ),
        Panel(
            title="Age of catalog_xmin",
            description="Transactions since the slot's catalog_xmin, which holds back vacuum of the system catalogs.",
            unit="short",
            queries=(Query(worst(shown(known.SLOT_XMIN_AGE))),),
            steps=((None, GREEN), (XMIN_AGE.default, RED)),
            width=12,
        ),
        Panel(
            title="Prepared transactions that have not ended",
            description="The age of the oldest one: it holds back WAL, vacuum and new snapshots.",
            unit="s",
            queries=(Query(worst(shown(known.PREPARED_AGE))),),
            width=12,
        ),
    ),
)

CONNECTION_ROW = Row(
    "Connection and decoding at the server",
    (
        Panel(
            title="Connections",
            description="1 while the replication connection and the side connection for these figures are up.",
            unit="none",
            queries=(Query(least(shown(known.SOURCE_CONNECTED), "role"), "{{pipeline}} {{role}}"),),
            least=0,
            most=1,
        ),
        Panel(
            title="Silence",
            description="Time since the server last sent anything, and since it was last sent our position.",
            unit="s",
            queries=(
                Query(f"time() - {worst(shown(known.LAST_MESSAGE))}", "{{pipeline}} from the server"),
                Query(f"time() - {worst(shown(known.LAST_FEEDBACK))}", "{{pipeline}} to the server"),
            ),
        ),
        Panel(
            title="Reconnects and failed side queries",
            description="How many times the stream was begun again, by reason, and queries for slot and WAL that "
            "failed.",
            unit="short",
            queries=(
                Query(total(over("increase", shown(known.RECONNECTS), RATE), "reason"), "{{pipeline}} {{reason}}"),
                Query(total(over("increase", shown(known.PROBE_ERRORS), RATE)), "{{pipeline}} side query"),
            ),
        ),
        Panel(
            title="Received",
            description="Bytes on the replication connection.",
            unit="Bps",
            queries=(Query(total(over("rate", shown(known.RECEIVED_BYTES), RATE))),),
        ),
        Panel(
            title="Decoded by the server",
            description="Bytes of transactions that the server decoded for the slot, sent before their end, and "
            "wrote to its disk (logical_decoding_work_mem).",
            unit="Bps",
            queries=tuple(
                Query(total(over("rate", shown(metric), RATE)), f"{{{{pipeline}}}} {name}")
                for metric, name in (
                    (known.DECODER_BYTES, "decoded"),
                    (known.DECODER_STREAMED_BYTES, "streamed"),
                    (known.DECODER_SPILL_BYTES, "spilled"),
                )
            ),
            quiet=_STREAMED,
        ),
        Panel(
            title="Transactions decoded by the server",
            description="As the server counts them for the slot: decoded, sent before their end, written to its disk.",
            unit="ops",
            queries=tuple(
                Query(total(over("rate", shown(metric), RATE)), f"{{{{pipeline}}}} {name}")
                for metric, name in (
                    (known.DECODER_TRANSACTIONS, "decoded"),
                    (known.DECODER_STREAMED_TRANSACTIONS, "streamed"),
                    (known.DECODER_SPILL_TRANSACTIONS, "spilled"),
                )
            ),
            quiet=_STREAMED,
        ),
    ),
)

BOARD = Dashboard(
    "sluice-source",
    "Sluice / Source and slot",
    "The WAL that the server keeps for a pipeline, for how long it can keep it, and the connection to it.",
    (SLOT_ROW, WAL_ROW, CONNECTION_ROW),
)
