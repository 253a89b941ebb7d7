"""The applier's process: options in, exit code out.

Owns the meaning of signals. SIGHUP reads the configuration again. The first SIGTERM or SIGINT lets
running merges finish, or cancels them when time is short, and ends with 0; the second ends at once. A
process that has not ended after
`stop_seconds` ends with 75. A killed applier is harmless: every commit carries its marker. Nothing
that this process writes holds a row value or a secret.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import click
import structlog

from sluice.errors import ApplyError, ServiceError, UsageError
from sluice.health.endpoint import CannotListen
from sluice.stopping import Stop
from sluice.store.base import ObjectStore
from sluice.telemetry import logs
from sluice.telemetry.crash import leave_no_values_behind
from sluice.telemetry.metered_store import MeteredStore
from sluice_spark import replayed, session
from sluice_spark.applier import Applier
from sluice_spark.configuration import Configuration, with_present_keys
from sluice_spark.lease import Lease
from sluice_spark.options import ApplyOptions
from sluice_spark.spool import opened
from sluice_spark.telemetry import ApplyTelemetry

ENVIRONMENT = "SLUICE_APPLY_OPTIONS"

_log = structlog.get_logger("sluice.apply")


class KeysChanged(ApplyError):
    """Spark and its executors have the keys of before until they end."""


@click.command()
@click.option(
    "--options-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"JSON options; without it they come from {ENVIRONMENT}.",
)
def main(options_file: Path | None) -> None:
    """Apply a pipeline's spool to its Delta tables."""
    leave_no_values_behind()
    signalled = threading.Event()
    try:
        options = read_options(options_file)
        configure_logging(options)
        options = with_present_keys(options)
        configure_logging(options)
        code = run(options, signalled)
    except KeysChanged as error:
        _log.warning("the applier begins again", reason=str(error))
        code = error.exit_code  # spark-submit owns the JVM, and is the one to begin again
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            begin_again(signalled)
            code = 0
    except ServiceError as error:
        _log.error("the applier stopped", error=error, hint=error.hint)
        code = error.exit_code
    except Exception as error:  # noqa: BLE001 - Python would print its text, which may hold a row
        _log.error("the applier failed", exc_info=error)
        code = ServiceError.exit_code
    sys.stdout.flush()
    sys.exit(code)


def read_options(options_file: Path | None) -> ApplyOptions:
    """The options from the file, else from the environment. Raises UsageError."""
    if options_file is not None:
        try:
            return ApplyOptions.from_json(options_file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"the options file {options_file} cannot be read") from error
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        raise UsageError(f"neither --options-file nor {ENVIRONMENT} is given")
    return ApplyOptions.from_json(text)


def run(options: ApplyOptions, signalled: threading.Event) -> int:
    """Applies until the options' end or a signal, which sets `signalled`. Returns 0, or raises
    ServiceError.
    """
    stop, stopping, rotated = threading.Event(), Stop(options.stop_seconds), threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        if signalled.is_set():
            os._exit(143)
        signalled.set()
        stop.set()
        stopping.ask()

    def keys_changed() -> None:
        rotated.set()
        stop.set()

    def end_now() -> None:
        _log.error("the stop took longer than stop_seconds, ending now", stop_seconds=options.stop_seconds)
        os._exit(ApplyError.exit_code)

    stopping.when_over(end_now)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what starts reads what there is
    telemetry = ApplyTelemetry(options)
    store = MeteredStore(opened(options.spool), telemetry.metrics)
    with _served(telemetry, options, store):
        session.fetch_jars(options, stopped=signalled.is_set)
        if signalled.is_set():
            stopping.done()
            return 0
        spark = session.start(options)
        # Starting Spark installs its own SIGINT handler.
        signal.signal(signal.SIGINT, asked)

        def names() -> list[str]:
            return applier.names()

        configuration = Configuration(options, names=names, rotated=keys_changed)

        def fresh() -> ApplyOptions | None:
            found = configuration.fresh()
            if found is not None:
                configure_logging(found)
            return found

        applier = Applier(
            options,
            store,
            spark,
            stop=stop,
            telemetry=telemetry,
            fresh=fresh,
            refused=lambda: configuration.refused,
        )
        signal.signal(signal.SIGHUP, lambda *_: configuration.ask())
        try:
            with replayed.watched(options, store):
                _apply(applier, rotated)
                if options.ending is not None:
                    replayed.finish(options, store, spark, stopped=signalled.is_set())
        finally:
            configuration.close()
            # An error ends the applier as well, and Spark may need as long to stop.
            stopping.ask()
            session.stop(spark)
    stopping.done()
    if rotated.is_set():
        seconds = max(options.lease_seconds, options.idle_lease_seconds)
        require_stop(signalled, wait_seconds=0 if applier.gave_lease_back else seconds)
    return 0


def _apply(applier: Applier, rotated: threading.Event) -> None:
    """Raises ServiceError, unless the keys were changed meanwhile: then the old ones may be refused already."""
    try:
        applier.run()
        applier.require_none_stopped()
    except ServiceError as error:
        if not rotated.is_set():
            raise
        _log.warning("the applier failed with the keys of before", error=error)


@contextmanager
def _served(telemetry: ApplyTelemetry, options: ApplyOptions, store: ObjectStore) -> Iterator[None]:
    """As `telemetry.served`. Where it cannot listen, another applier of this pipeline comes first: raises
    WriterFenced for one, since another port would only start a second one.
    """
    with ExitStack() as served:
        try:
            served.enter_context(telemetry.served(options.listen))
        except CannotListen:
            Lease(store, seconds=options.lease_seconds).require_free()
            raise
        yield


def require_stop(signalled: threading.Event, *, wait_seconds: float) -> None:
    """Raises KeysChanged unless the process was asked to end. Who could not give its lease back, because
    the keys of before were refused, waits until it ended.
    """
    if not signalled.wait(wait_seconds):
        raise KeysChanged("the keys of the object store were changed")


def begin_again(signalled: threading.Event) -> None:
    """The same command takes the place of this process, and reads the keys as they are now. Returns when
    the process was asked to end meanwhile; a signal that comes later ends it at once.
    """
    session.end_jvm()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if signalled.is_set():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command


def configure_logging(options: ApplyOptions) -> None:
    """Logs like the service: without secrets, and without the text of foreign exceptions."""
    logs.configure(log_format=options.log_format, level=options.log_level, secrets=options.secrets)
