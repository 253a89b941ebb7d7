"""Reads the settings again for a process that runs, as far as they may change."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from sluice.cli import wiring
from sluice.cli.invocation import Invocation
from sluice.cli.policies import targets_of
from sluice.errors import UsageError
from sluice.reloading import Signature, signature
from sluice.settings import Settings
from sluice.settings.display import fingerprint
from sluice.settings.environment import secret_files
from sluice.settings.reload import differing, fixed
from sluice.settings.secrets import dsn_secrets
from sluice.store.rotation import is_key
from sluice.telemetry import logs

if TYPE_CHECKING:
    from sluice.process.pipeline import Reread
    from sluice.source.sessions import SourceOptions


def files(invocation: Invocation) -> tuple[str, ...]:
    """What settings are read from: the configuration, and secrets that are mounted as files. A link stays one: where
    it leads is another place after each update of a ConfigMap, and the place before is gone.
    """
    with suppress(FileNotFoundError):  # without a working directory there is no such file either
        return (str(Path(invocation.config).absolute()), *secret_files(os.environ))
    return (invocation.config, *secret_files(os.environ))


def seen(invocation: Invocation) -> Signature:
    """The files as they are now: to be asked before they are read, so that no later change is missed."""
    return signature(*files(invocation))


def dsn(invocation: Invocation) -> Callable[[], str]:
    """What reads source.dsn again, from file and environment as they are then. Raises UsageError."""

    def read() -> str:
        found = invocation.read().settings.source.dsn.get_secret_value()
        for secret in dsn_secrets(found):
            logs.hide(secret)
        return found

    return read


def spool_options(invocation: Invocation, settings: Settings) -> Callable[[], dict[str, str]]:
    """What reads spool.options again; as they were read last while they cannot be read."""
    last = [wiring.plain(settings.spool.options)]

    def read() -> dict[str, str]:
        try:
            fresh = invocation.read().settings
        except UsageError as error:
            structlog.get_logger("store").warning("the keys of the store cannot be read again", error=error)
        else:
            last[0] = wiring.plain(fresh.spool.options)
            for name, value in last[0].items():
                if is_key(name):
                    logs.hide(value)
        return last[0]

    return read


def settings_of_now(
    invocation: Invocation, settings: Settings, *, seen: Signature, take: Callable[[Settings], None]
) -> Callable[[], Settings]:
    """What gives `settings`, which were read after the files were `seen`, as they are then: read again when one of the
    files has changed, with `take` called before they are in force. They stay as they were while they cannot be read or
    `take` refuses them; where a setting has changed that may not, only the keys of both stores are new.
    """
    last, before = [(seen, settings)], fixed(settings)

    def read() -> Settings:
        now = signature(*files(invocation))
        known, held = last[0]
        if now != known:
            last[0] = (now, held)  # what is refused is said once
            try:
                fresh = invocation.read().settings
                last[0] = (now, _with_keys(held, fresh))
                refuse(differing(before, fixed(fresh)))
                take(fresh)
                last[0] = (now, fresh)
            except UsageError as error:
                structlog.get_logger("configuration").error(
                    "the configuration was changed and is not taken", error=error, hint=error.hint
                )
        return last[0][1]

    return read


def _with_keys(settings: Settings, fresh: Settings) -> Settings:
    spool = settings.spool.model_copy(update={"options": fresh.spool.options})
    lake = settings.lake.model_copy(update={"options": fresh.lake.options})
    return settings.model_copy(update={"spool": spool, "lake": lake})


def ingest(
    invocation: Invocation, settings: Settings, *, instance: str, source: "SourceOptions"
) -> "Callable[[], Reread]":
    """What reads again for an ingest that was started with `settings`. Raises UsageError when what
    is read is not valid, or cannot be taken while it runs.
    """
    before = fixed(settings)

    def read() -> "Reread":
        from sluice.process.pipeline import Reread
        from sluice.source.credentials import parsed, require_same_place

        fresh = invocation.read().settings
        refuse(differing(before, fixed(fresh)))
        require_same_place(parsed(source.dsn), parsed(fresh.source.dsn.get_secret_value()))
        return Reread(
            wiring.ingest_options(fresh, instance=instance, source=source),
            config_hash=fingerprint(fresh),
            targets_of=lambda name: targets_of(fresh, name),
            accept=lambda: invocation.log_as(fresh),
        )

    return read


def refuse(names: tuple[str, ...]) -> None:
    """Raises UsageError if there are `names` of settings that changed and may not."""
    if names:
        raise UsageError(
            f"{', '.join(names)} cannot change while a process runs, so no change in the file was applied",
            hint="restart the process, or restore the old value",
        )


def of_applier(invocation: Invocation, *, seen: Signature, log_format: str) -> wiring.Reread:
    """How an applier that is started now reads again: by a process that prints its options."""
    watched, step = files(invocation), "-v" if invocation.verbosity > 0 else "-q"
    command = [sys.executable, "-m", "sluice.cli.applier_options", "--config", watched[0], "--log-format", log_format]
    return wiring.Reread(watched, seen, [*command, *[step] * abs(invocation.verbosity)])
