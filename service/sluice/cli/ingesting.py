"""Starts ingest for `run` and `up`."""

import os
import socket
import uuid
from typing import TYPE_CHECKING

import structlog

from sluice.cli import wiring
from sluice.settings import Settings
from sluice.settings.present import fingerprint

if TYPE_CHECKING:
    from sluice.process.pipeline import ApplierCommand


def start(
    settings: Settings,
    *,
    applier: "ApplierCommand | None" = None,
    until_lsn: int | None = None,
    until_caught_up: bool = False,
) -> int:
    """Runs ingest in this process, and `applier` beside it; returns the exit code."""
    from sluice.process import pipeline
    from sluice.source.sessions import transport_of

    options = wiring.ingest_options(settings, instance=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    problem = transport_of(options.source).problem
    if problem and options.source.allow_insecure:
        structlog.get_logger("sluice").warning(
            "the source is not proven to be who it says, source.allow_insecure permits it", seen=problem
        )
    return pipeline.run(
        options,
        store=wiring.open_spool(settings),
        reporter=wiring.reporter(settings),
        telemetry=pipeline.TelemetryOptions(
            listen=settings.telemetry.listen,
            max_tables=settings.telemetry.max_tables,
            config_hash=fingerprint(settings),
        ),
        applier=applier,
        until_lsn=until_lsn,
        until_caught_up=until_caught_up,
    )
