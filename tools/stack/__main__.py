"""What the Makefile's `up`, `status`, `load`, `query`, `logs`, `down` and `reset` call."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click
import psycopg
import rich.console
import rich.table

from sluice.cli import exits
from tools.local.binaries import LocalServerError
from tools.stack import query as querying
from tools.stack.layout import Layout
from tools.stack.load import Load
from tools.stack.members import dsn, sluice_command, sluice_environment, sluice_settings
from tools.stack.stack import Stack

_DIRECTORY = Path(__file__).parents[2] / "build" / "stack"
_EXAMPLE = "SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status"
_MEBI = 1024**2


def _command(work: Callable[..., int]) -> Callable[..., None]:
    """Errors as one line, and the exit status."""

    @wraps(work)
    def guarded(*arguments: Any, **options: Any) -> None:
        signal.signal(signal.SIGTERM, _leave)
        try:
            sys.exit(work(*arguments, **options))
        except KeyboardInterrupt:
            sys.exit(130)
        except (LocalServerError, OSError, psycopg.Error) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)

    return guarded


def _leave(*_: object) -> NoReturn:
    sys.exit(143)


@click.group()
@click.option(
    "--directory",
    envvar="STACK",
    type=click.Path(path_type=Path),
    default=_DIRECTORY,
    show_default=True,
    help="Where all of it lies.",
)
@click.pass_context
def main(context: click.Context, directory: Path) -> None:
    """PostgreSQL, an S3 server, ingest, applier and Prometheus on this machine. Each command is a
    target of the Makefile.
    """
    try:
        # Other commands are about the stack as it was started.
        asked = os.environ if context.invoked_subcommand == "up" else {}
        context.obj = Stack(Layout(directory, asked=asked), say=click.echo)
    except LocalServerError as error:
        context.fail(str(error))


@main.command()
@click.pass_obj
@_command
def up(stack: Stack) -> int:
    """Starts what does not run and waits until it answers."""
    began = stack.up()
    settings = "".join(f"export {name}='{value}'\n" for name, value in sluice_settings(stack.layout).items())
    environment = stack.layout.directory / "environment"
    environment.write_text(settings)
    click.echo("everything ran already, nothing was changed\n" if not began else "")
    port = stack.layout.ports
    for what, where in (
        ("PostgreSQL", dsn(stack.layout)),
        ("status page", f"http://127.0.0.1:{port['METRICS_PORT']}/"),
        (
            "metrics",
            (
                f"http://127.0.0.1:{port['METRICS_PORT']}/metrics and, of the applier, "
                f"http://127.0.0.1:{port['APPLY_METRICS_PORT']}/metrics"
            ),
        ),
        (
            "Prometheus",
            f"http://127.0.0.1:{port['PROMETHEUS_PORT']}/, with the alerts that are shipped"
            if stack.pid(stack.members[-1])
            else "not running",
        ),
        (
            "S3",
            (
                f"http://127.0.0.1:{port['S3_PORT']}, key and secret `test`; its objects are files in "
                f"{_short(stack.layout.directory / 's3')}"
            ),
        ),
        ("lake", "s3://sluice/lake, one Delta table for each table of the shop"),
        ("commits", _ways(stack)),
        ("query it", f'make query SQL="{_EXAMPLE}"'),
        ("change it", f"make load, or psql {dsn(stack.layout)}"),
        ("by hand", f". {_short(environment)}; sluice tables -c tools/stack/sluice.yaml"),
        ("stop it", "make down keeps the data, make reset deletes it"),
    ):
        click.echo(f"  {what:12} {where}")
    return 0


@main.command()
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
@_command
def status(stack: Stack, arguments: tuple[str, ...]) -> int:
    """Shows what runs, then `sluice status`."""
    running = {member.name: stack.pid(member) for member in stack.members}
    drawn = rich.table.Table("member", "what", "port", "process", box=None)
    for member in stack.members:
        drawn.add_row(member.name, member.does, str(member.port), str(running[member.name] or "does not run"))
    console = rich.console.Console(highlight=False, stderr="--json" in arguments)
    console.print(drawn)
    if not stack.layout.exists or running["s3"] is None:
        click.echo("the stack is down: make up", err=True)
        return 1
    click.echo(err="--json" in arguments)
    outcome = subprocess.run(
        sluice_command("status", *arguments), env=sluice_environment(stack.layout, os.environ), check=False
    ).returncode
    if any(running[member.name] is None for member in stack.members if not member.optional):
        return 1
    # A code that says how the pipeline is was shown in words; here it is no failure.
    return 0 if outcome in exits.HEALTH.values() else outcome


@main.command()
@click.option("--seconds", envvar="LOAD_SECONDS", type=float, help="How long; left out: until Ctrl-C.")
@click.option(
    "--clerks",
    envvar="LOAD_CLERKS",
    type=click.IntRange(1, 50),
    default=2,
    show_default=True,
    help="People at work at the same time.",
)
@click.pass_obj
@_command
def load(stack: Stack, seconds: float | None, clerks: int) -> int:
    """Works in the shop, until Ctrl-C."""
    if stack.pid(stack.members[0]) is None:
        raise LocalServerError("the stack is down: make up")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if seconds is None:
        click.echo(f"until Ctrl-C; see http://127.0.0.1:{stack.layout.ports['METRICS_PORT']}/ or make status")
    committed = Load(dsn(stack.layout), clerks=clerks, stop=stop).run(seconds=seconds, say=click.echo)
    click.echo(f"{committed:,} transactions in all")
    return 0


@main.command()
@click.option(
    "--sql", envvar="SQL", default=_EXAMPLE, show_default=True, help="Over the lake's tables, by their names."
)
@click.pass_obj
@_command
def query(stack: Stack, sql: str) -> int:
    """Asks the lake, by an engine that is not Spark."""
    answer = querying.ask(stack, sql)
    drawn = rich.table.Table(*answer.column_names)
    for row in answer.to_pylist():
        drawn.add_row(*("" if value is None else str(value) for value in row.values()))
    rich.console.Console().print(drawn)
    return 0


@main.command()
@click.option(
    "--lines", envvar="LINES_EACH", type=int, default=20, show_default=True, help="How many of each log's last lines."
)
@click.option(
    "--follow", envvar="FOLLOW", type=bool, default=True, show_default=True, help="Go on as they grow, until Ctrl-C."
)
@click.pass_obj
@_command
def logs(stack: Stack, lines: int, follow: bool) -> int:  # noqa: FBT001  a command's parameter
    """Shows the logs of all members."""
    found = [str(log) for member in stack.members if (log := stack.layout.daemon(member.name).log).exists()]
    if not found:
        raise LocalServerError("there are no logs: make up")
    try:
        return subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), *found], check=False).returncode
    except KeyboardInterrupt:
        return 0


@main.command()
@click.pass_obj
@_command
def down(stack: Stack) -> int:
    """Stops what runs, in order, and keeps the data."""
    if not stack.layout.exists or not stack.down():
        click.echo("nothing ran")
    else:
        click.echo("the data is kept for the next `make up`; `make reset` deletes it")
    return 0


@main.command()
@click.pass_obj
@_command
def reset(stack: Stack) -> int:
    """Stops what runs and deletes the data."""
    removed = stack.reset() if stack.layout.exists else []
    for one in removed:
        click.echo(f"deleted {_short(one.path)} ({one.bytes / _MEBI:.1f} MiB)")
    if not removed:
        click.echo("there was nothing to delete")
    return 0


def _ways(stack: Stack) -> str:
    """How the changes of each table are committed to the lake."""
    known = [
        f"{table['table']} {table['way']}" + (f" ({table['way_reason']})" if table["way_reason"] else "")
        for table in querying.tables(stack)
        if table["way"]
    ]
    return ", ".join(known) or "`make status` shows the way of each table after its first changes (make load)"


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main(prog_name="python -m tools.stack")
