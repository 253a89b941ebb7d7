"""Starts ingest for `run` and `up`."""

import os
import socket
import sys
import uuid
from typing import TYPE_CHECKING

import structlog

from sluice import signals
from sluice.cli import config_reload, policies, wiring
from sluice.cli.invocation import Invocation
from sluice.errors import SourceMoved
from sluice.reloading import FileWatch, Signature, signature
from sluice.settings import Settings
from sluice.settings.display import fingerprint

if TYPE_CHECKING:
    from sluice.process.pipeline import ApplierCommand


def start(
    invocation: Invocation,
    settings: Settings,
    *,
    seen: Signature,
    applier: "ApplierCommand | None" = None,
    until_lsn: int | None = None,
    until_caught_up: bool = False,
    listen: str | None = None,
) -> int:
    """Runs ingest in this process, and `applier` beside it; returns the exit code. `seen` is the
    configuration file as it was before it was read. `listen` is where it listens instead of
    telemetry.listen. When the source was promoted, the same command
    takes the place of this process.
    """
    from sluice.health.endpoint import CannotListen
    from sluice.health.tls import TlsFiles
    from sluice.process import pipeline
    from sluice.source.sessions import transport_of
    from sluice.source.slot import require_nobody_receives

    instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    keys = policies.key_files(settings)
    keys_seen = signature(*keys)
    reread_dsn = config_reload.dsn(invocation)
    source = wiring.source_options(settings, reread_dsn=reread_dsn)
    options = wiring.ingest_options(settings, instance=instance, source=source)
    problem = transport_of(options.source).problem
    if problem and options.source.allow_insecure:
        structlog.get_logger("sluice").warning(
            "the identity of the source is not verified; source.allow_insecure permits this", seen=problem
        )
    try:
        return pipeline.run(
            options,
            store=wiring.open_spool(settings, reread=config_reload.spool_options(invocation, settings)),
            reporter=wiring.reporter(
                settings, reread_dsn=reread_dsn, reread_options=config_reload.spool_options(invocation, settings)
            ),
            telemetry=pipeline.TelemetryOptions(
                listen=listen or settings.telemetry.listen,
                max_tables=settings.telemetry.max_tables,
                token_path=settings.telemetry.token_path,
                tls=TlsFiles(*settings.telemetry.tls_files),
                config_hash=fingerprint(settings),
                runbook_url=settings.telemetry.runbook_url,
                pipelines=settings.telemetry.pipelines,
                spares_requests=settings.spool.is_remote,
                traces=settings.telemetry.traces,
                traces_headers=wiring.plain(settings.telemetry.traces_headers),
            ),
            rereading=pipeline.Rereading(
                FileWatch(*config_reload.files(invocation), *keys, seen=(*seen, *keys_seen)),
                config_reload.ingest(invocation, settings, instance=instance, source=source),
                lambda name: policies.targets_of(settings, name),
            ),
            applier=applier,
            until_lsn=until_lsn,
            until_caught_up=until_caught_up,
        )
    except CannotListen:
        # Another port would only make this a second process of the pipeline.
        require_nobody_receives(options.source)
        raise
    except SourceMoved as moved:
        if signals.arm().stand_down():
            raise  # whoever asked for a stop must not get another process
        structlog.get_logger("sluice").warning("the command begins again", reason=str(moved))
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command
