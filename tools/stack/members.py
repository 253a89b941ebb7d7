"""The members of the local stack in the order in which they start: how each is run, how one knows
that it is ready, and how it is asked to stop.

Must not keep anything: what runs is known from the layout's files, what is stored from the members
themselves.
"""

import http.client
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tools.demo import shop
from tools.local import binaries, s3proxy
from tools.local.postgres import PostgresServer
from tools.local.prometheus import PrometheusServer
from tools.local.s3 import ACCESS_KEY, REGION
from tools.stack.layout import Layout
from tools.stack.processes import Launch

_ROOT = Path(__file__).parents[2]
CONFIGURATION = Path(__file__).with_name("sluice.yaml")
RULES = _ROOT / "deploy" / "monitoring" / "rules.yml"
BUCKET = "sluice"
DATABASE = "shop"
ROLE = "sluice"
_POSTGRES_SETTINGS = {
    # A limit, so that the page and the alerts have WAL headroom to show.
    "max_slot_wal_keep_size": "4GB",
    "log_line_prefix": "%m [%p] ",
}
_LOOK_SECONDS = 5.0

Steps = Sequence[tuple[signal.Signals, float]]
_DRAIN: Steps = ((signal.SIGTERM, 90.0), (signal.SIGTERM, 10.0))
"""Sluice lets go in good order on the first and at once on the second."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process. `launch` prepares it; `settle` brings it to where the next one can use it, and
    changes nothing when it is there already.
    """

    name: str
    does: str
    port_variable: str
    port: int
    launch: Callable[[], Launch]
    ready: Callable[[], bool]
    stop: Steps
    settle: Callable[[], None] = lambda: None
    patience_seconds: float = 60.0
    optional: bool = False
    """Whether the stack goes on where it cannot be had."""


def members(layout: Layout) -> tuple[Member, ...]:
    """All of them. Each needs those before it."""
    port = layout.ports
    metrics, apply_metrics = port["METRICS_PORT"], port["APPLY_METRICS_PORT"]
    return (
        Member(
            name="postgres",
            does="PostgreSQL 18",
            port_variable="PG_PORT",
            port=port["PG_PORT"],
            launch=lambda: _postgres(layout),
            ready=lambda: _accepts(layout),
            settle=lambda: _open_shop(layout),
            stop=((signal.SIGINT, 90.0), (signal.SIGQUIT, 20.0)),
        ),
        Member(
            name="s3",
            does="S3 server (S3Proxy on files)",
            port_variable="S3_PORT",
            port=port["S3_PORT"],
            launch=lambda: _s3(layout),
            ready=lambda: _answers(port["S3_PORT"], "/", any_status=True),
            settle=lambda: (layout.directory / "s3" / BUCKET).mkdir(exist_ok=True),
            stop=((signal.SIGTERM, 20.0),),
        ),
        Member(
            name="ingest",
            does="sluice run",
            port_variable="METRICS_PORT",
            port=metrics,
            launch=lambda: _sluice(layout, "run"),
            ready=lambda: _answers(metrics, "/readyz"),
            stop=_DRAIN,
        ),
        Member(
            name="applier",
            does="sluice apply",
            port_variable="APPLY_METRICS_PORT",
            port=apply_metrics,
            launch=lambda: _sluice(layout, "apply"),
            ready=lambda: _answers(apply_metrics, "/readyz"),
            stop=_DRAIN,
            patience_seconds=120.0,
        ),
        Member(
            name="prometheus",
            does="Prometheus",
            port_variable="PROMETHEUS_PORT",
            port=port["PROMETHEUS_PORT"],
            launch=lambda: _prometheus(layout),
            ready=lambda: _answers(port["PROMETHEUS_PORT"], "/-/ready"),
            stop=((signal.SIGTERM, 20.0),),
            optional=True,
        ),
    )


def dsn(layout: Layout, *, user: str = ROLE, dbname: str = DATABASE) -> str:
    return f"postgresql://{user}@127.0.0.1:{layout.ports['PG_PORT']}/{dbname}"


def store_options(layout: Layout) -> dict[str, str]:
    """Options under which Sluice and delta-rs reach the S3 server."""
    return {
        "aws_endpoint": f"http://127.0.0.1:{layout.ports['S3_PORT']}",
        "aws_region": REGION,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": ACCESS_KEY,
        "allow_http": "true",
    }


def sluice_settings(layout: Layout) -> dict[str, str]:
    """What the environment adds to the configuration file: addresses and secrets."""
    return {
        "SLUICE_SOURCE__DSN": dsn(layout),
        **{f"SLUICE_SPOOL__OPTIONS__{name.upper()}": value for name, value in store_options(layout).items()},
        "SLUICE_TELEMETRY__LISTEN": f"127.0.0.1:{layout.ports['METRICS_PORT']}",
        "SLUICE_TELEMETRY__APPLY_LISTEN": f"127.0.0.1:{layout.ports['APPLY_METRICS_PORT']}",
        "SLUICE_TELEMETRY__LOG_FORMAT": "console",
    }


def sluice_environment(layout: Layout, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a command of Sluice, without any other pipeline's settings in it."""
    kept = {
        name: value for name, value in environment.items() if not name.startswith("SLUICE_") or name == "SLUICE_JARS"
    }
    return {**kept, **sluice_settings(layout)}


def sluice_command(*arguments: str) -> list[str]:
    """The command of this very environment, whatever PATH says."""
    return [str(Path(sys.executable).with_name("sluice")), *arguments, "-c", str(CONFIGURATION)]


def _sluice(layout: Layout, command: str) -> Launch:
    return Launch(sluice_command(command), sluice_environment(layout, os.environ))


def _postgres(layout: Layout) -> Launch:
    home = layout.postgres_home
    home.mkdir(parents=True, exist_ok=True)
    programs = binaries.bin_dir(binaries.EMBEDDED_MAJOR, copy_to=home / "programs")
    server = PostgresServer(
        home / "data", bin_dir=programs, port=layout.ports["PG_PORT"], settings=_POSTGRES_SETTINGS, durable=True
    )
    server.initialise()
    return Launch(server.command(), as_helper=True)


def _accepts(layout: Layout) -> bool:
    try:
        psycopg.connect(dsn(layout, user="postgres", dbname="postgres"), connect_timeout=int(_LOOK_SECONDS)).close()
    except psycopg.OperationalError:
        return False
    return True


def _open_shop(layout: Layout) -> None:
    """The pipeline's role, and a database of its own with a small shop in it."""
    with psycopg.connect(dsn(layout, user="postgres", dbname="postgres"), autocommit=True) as admin:
        if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is None:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION".encode())
        if admin.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone() is None:
            admin.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}".encode())
    with psycopg.connect(dsn(layout)) as owner:
        if (
            owner.execute("SELECT FROM pg_tables WHERE schemaname = 'public' AND tablename = 'customers'").fetchone()
            is None
        ):
            shop.open_shop(owner)


def _s3(layout: Layout) -> Launch:
    return Launch(
        s3proxy.command(
            layout.directory / "s3proxy.conf", port=layout.ports["S3_PORT"], objects=layout.directory / "s3"
        )
    )


def _prometheus(layout: Layout) -> Launch:
    targets = {
        "sluice-ingest": [f"127.0.0.1:{layout.ports['METRICS_PORT']}"],
        "sluice-apply": [f"127.0.0.1:{layout.ports['APPLY_METRICS_PORT']}"],
    }
    server = PrometheusServer(
        layout.directory / "prometheus",
        targets=targets,
        rules=[RULES],
        port=layout.ports["PROMETHEUS_PORT"],
        interval="5s",
    )
    return Launch(server.command())


def _answers(port: int, path: str, *, any_status: bool = False) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_LOOK_SECONDS):
            return True
    except urllib.error.HTTPError:
        return any_status
    except (OSError, http.client.HTTPException):
        return False
