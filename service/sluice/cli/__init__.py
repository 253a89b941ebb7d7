"""The command line: `sluice`. The only reader of settings, and the only place that turns errors
into exit codes.

Invariants: stdout carries data, stderr logs and progress. Every command takes the same common
options. Exit codes are those of docs/exit-codes.md. One module per command, named as the command;
`exits` maps errors, `wiring` turns settings into plain values.
"""

import sys

import click

from sluice.cli import (
    apply,
    blame,
    check,
    completion,
    config,
    drain,
    exits,
    fleet,
    init,
    jars,
    plan,
    query,
    rebuild,
    replay,
    run,
    setup,
    slot,
    spool,
    status,
    tables,
    up,
    verify,
    version,
    views,
    wait,
)
from sluice.cli.invocation import Invocation, common, offer_forms

_GROUPS = {
    "Set up": (init.init, check.check, setup.setup),
    "Run": (up.up, run.run, apply.apply, drain.drain, fleet.fleet),
    "Inspect": (status.status, tables.tables, plan.plan, verify.verify, spool.spool),
    "Query": (query.query, views.views, wait.wait, blame.blame),
    "Repair": (tables.tables.commands["resync"], rebuild.rebuild, replay.replay, slot.slot),
    "Configure": (config.config, jars.jars, completion.completion, version.version),
}


class _Grouped(click.Group):
    """Lists commands in the order in which a new user needs them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(limit=100)) for command in commands]
                )


@click.group(cls=_Grouped, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="sluice-cdc", message="sluice %(version)s", help="Print the version and exit.")
@common
def cli(invocation: Invocation) -> None:
    """Keep Delta Lake tables equal to PostgreSQL tables, continuously, from the write-ahead log.

    \b
    First steps:
      sluice init shop          write shop/sluice.yaml, .env.example, and grants.sql for the role
      cd shop                   put your connection string and addresses into sluice.yaml
      sluice check              see what is missing, and the SQL that fixes each finding
      sluice up                 snapshot, stream and apply, all on this machine

    Every command reads sluice.yaml, or the file that -c names. SLUICE_* variables override the file.
    """


for _commands in _GROUPS.values():
    for _command in _commands:
        cli.add_command(_command)
offer_forms(cli)


def main() -> None:
    """Entry point of `sluice`."""
    exits.end_with(cli, sys.argv[1:])
