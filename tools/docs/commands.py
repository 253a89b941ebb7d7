"""docs/cli.md: every command with its help, options, examples and exit codes, made from the
commands themselves.
"""

import inspect
import textwrap
from collections.abc import Iterator

import click

_EVERYWHERE = (0, 1, 2, 130, 141)
_EXITS: dict[str, tuple[int, ...]] = {
    "check": (3, 7),
    "setup": (5, 6, 7, 75),
    "up": (5, 6, 7, 8, 75),
    "run": (5, 6, 7, 8, 75),
    "apply": (6, 8, 9, 75),
    "fleet": (75,),
    "drain": (5, 6, 7, 75),
    "status": (7, 9, 10, 11, 12),
    "tables": (6, 75),
    "verify": (4, 5, 6, 75),
    "blame": (6, 75),
    "query": (6, 75),
    "views": (6, 75),
    "wait": (5, 6, 7, 75),
    "plan": (5, 6, 13, 14, 75),
    "tables add": (3, 5, 6, 75),
    "tables remove": (5, 6, 75),
    "tables resync": (6, 75),
    "tables pause": (6, 75),
    "tables resume": (6, 75),
    "resync": (6, 75),
    "rebuild": (6, 8, 9, 75),
    "replay": (6, 8, 75),
    "spool ls": (6, 75),
    "spool inspect": (6, 75),
    "spool verify": (4, 6, 75),
    "spool gc": (6, 75),
    "slot show": (5, 6, 75),
    "slot drop": (5, 6, 7, 8, 75),
    "slot recreate": (5, 6, 7, 8, 75),
    "slot advance": (5, 6, 7, 8, 75),
    **dict.fromkeys(
        (
            "init",
            "config show",
            "config validate",
            "config schema",
            "config env",
            "completion",
            "version",
            "jars fetch",
        ),
        (),
    ),
}
"""Of every command, beside those of _EVERYWHERE, which any command can end with."""
_COMMON = ("config", "verbose", "quiet", "no_color", "log_format", "help")


def page(root: click.Group) -> str:
    """docs/cli.md for the commands below `root`."""
    commands = list(_leaves(root, ()))
    context = click.Context(root, info_name="sluice")
    common = next(command for _, command in commands)
    shared = [parameter for parameter in common.params if parameter.name in _COMMON]
    parts = [_HEAD, _options(shared, context), *(_section(path, command) for path, command in commands)]
    return "\n\n".join(parts) + "\n"


def _leaves(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(path)
    context = click.Context(command, info_name=f"sluice {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    own = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in _COMMON
    ]
    codes = ", ".join(str(code) for code in sorted((*_EVERYWHERE, *_EXITS[name])))
    parts = [f"## sluice {name}", f"```text\nsluice {name} {usage}\n```", *_prose(command.help or "")]
    return "\n\n".join([*parts, *([_options(own, context)] if own else []), f"Exit codes: {codes}."])


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; those that click must not wrap become code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if lines[0] != "\b":
            yield paragraph
            continue
        yield lines[1]
        yield "```text\n" + textwrap.dedent("\n".join(lines[2:])) + "\n```"


def _options(options: list[click.Parameter] | list[click.Option], context: click.Context) -> str:
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    rows = [f"| `{_cell(names)}` | {_cell(' '.join(meaning.split()))} |" for names, meaning in records]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_HEAD = f"""\
# Command line

<!-- Generated from the commands by `make docs`; `make check` compares. -->

Data goes to stdout, logs and progress to stderr. Codes {", ".join(map(str, _EVERYWHERE))} can end
any command; [exit-codes.md](exit-codes.md) explains each. A command that can answer in JSON does so
with `--json` or `-o json`, and in YAML with `-o yaml`. The answer has a `schema_version`. A failure
is then one document too.

Every command takes:"""
