"""`fleet`: many pipelines on one machine."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli import config_reload, wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError
from sluice.settings.reload import fixed

if TYPE_CHECKING:
    from sluice.process.child_process import Child
    from sluice.process.fleet.member import Folder, Member

INGEST = (sys.executable, "-m", "sluice.cli.fleet_ingest")
DEFAULT_WORKERS = 2


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "--listen",
    default="127.0.0.1:9187",
    show_default=True,
    metavar="ADDRESS",
    help="Address of the page, /status, /metrics and the probes of all pipelines.",
)
@click.option(
    "--token-path",
    default="",
    metavar="FILE",
    help="File with a token that requests must carry, as for telemetry.token_path.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=DEFAULT_WORKERS,
    show_default=True,
    metavar="N",
    help="How many windows are applied at the same time, in all pipelines together.",
)
@common
def fleet(invocation: Invocation, folder: str, listen: str, token_path: str, workers: int) -> int:
    """Run all pipelines of a folder: snapshot, stream and apply, until stopped.

    Every NAME.yaml and NAME/sluice.yaml in DIR is the configuration of one pipeline. Each pipeline has an
    ingest process of its own. One applier (one JVM, one Spark session) serves all of them. A pipeline
    that fails stops no other.

    After SIGHUP the fleet reads the folder again: it starts new pipelines, stops those whose file
    is gone, and restarts those whose settings changed and those that had failed. After SIGTERM or
    Ctrl-C, all pipelines finish the work that they have begun. A second signal ends them at once.
    Nothing is lost in either case.

    \b
    Examples:
      sluice fleet pipelines
      sluice fleet pipelines --listen 0.0.0.0:9187 --token-path token
      sluice status --fleet pipelines
    """
    wiring.require("psycopg", "pyarrow", "obstore", "pyspark")
    from sluice.cli.fleet_ingest import FORK
    from sluice.process.child_process import executing
    from sluice.process.fleet import fleet as running
    from sluice.process.fleet.forks import Forks, possible
    from sluice.process.pipeline import ApplierCommand

    found = read(invocation, folder)
    if found.members:
        invocation.with_config(next(iter(found.members.values())).config).settings()  # logs as the first one says
    environment = running.environment()
    forks = Forks([*INGEST, FORK], environment) if possible() else None

    def alone(arguments: Sequence[str]) -> "Child":
        return executing(environment)([*INGEST, *arguments])

    options = running.FleetOptions(
        listen=listen,
        token_path=token_path,
        workers=workers,
        applier=ApplierCommand(wiring.fleet_applier_command(), environment=environment),
        launch=forks.launch if forks else alone,
    )
    try:
        return running.run(lambda: read(invocation, folder), options)
    finally:
        if forks:
            forks.close()


def configurations(folder: str) -> list[str]:
    """The files of the pipelines, by name, but for hidden ones: of editors, and those behind the links of a mounted
    ConfigMap. Raises UsageError when there is no such folder.
    """
    try:
        root = Path(folder).absolute()
        found = bool(folder) and root.is_dir()
    except OSError:  # no name of a file is as long, or there is no working directory any more
        found = False
    if not found:
        raise UsageError(f"{folder!r} is not a folder", hint="name the folder that holds the configurations")
    return sorted(str(path) for pattern in ("[!.]*.yaml", "[!.]*/sluice.yaml") for path in root.glob(pattern))


def read(invocation: Invocation, folder: str) -> "Folder":
    """All pipelines of the folder as they are now. Raises UsageError when it cannot be read."""
    from sluice.process.fleet.member import Folder

    members: list[Member] = []
    refused: dict[str, str] = {}
    for config in configurations(folder):
        try:
            members.append(_member(invocation.with_config(config)))
        except UsageError as error:
            refused[config] = " ".join(filter(None, (f"{error};", error.hint))).rstrip(";")
    named = Counter(one.name for one in members)
    for one in members:
        if named[one.name] > 1:
            others = ", ".join(other.config for other in members if other.name == one.name and other is not one)
            refused[one.config] = f"the pipeline {one.name} has another file: {others}; a pipeline has one"
    return Folder({one.name: one for one in members if one.config not in refused}, refused)


def _member(invocation: Invocation) -> "Member":
    from sluice.process.fleet.member import Member

    seen = config_reload.seen(invocation)
    settings = invocation.read().settings
    log_format = wiring.applier_log_format(settings, asked=invocation.log_format)
    options = wiring.apply_options(
        settings,
        log_format=log_format,
        log_level=invocation.log_level(settings),
        reread=config_reload.of_applier(invocation, seen=seen, log_format=log_format),
    )
    step = "-v" if invocation.verbosity > 0 else "-q"
    return Member(
        settings.pipeline,
        invocation.config,
        ("-c", invocation.config, "--log-format", log_format, *[step] * abs(invocation.verbosity)),
        settings.stop_timeout,
        options,
        fixed(settings),
    )
