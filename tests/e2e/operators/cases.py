"""What an operator types, and how it ends: every command and every option, at the moment of the day at which it makes
sense. `completeness` holds the list to the commands themselves.

`{folder}`, `{lsn}`, `{slot}`, `{entry}` and `{segment}` are those of the day. A case is given in every form that its
command can answer in; `make test` gives those that are not slow, as a
table, and the first of each command and moment in YAML too.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from sluice.cli import cli
from sluice.cli.invocation import NAMES
from tests.support.extent import FULL

NEW, RUNNING, STOPPED, LOST = "before the first start", "while it runs", "after a stop", "after the slot was lost"


@dataclass(frozen=True)
class Case:
    """`codes` are those that the page of the command allows here; `says` is somewhere in the answer as a table.
    `configured`: with `-c`. `forms`: also as JSON and YAML, where the command can.
    """

    when: str
    line: str
    codes: tuple[int, ...] = (0,)
    says: str = ""
    slow: bool = False
    configured: bool = True
    forms: bool = True

    @property
    def id(self) -> str:
        return f"{self.when}: sluice {self.line}"

    def words(self, **places: str) -> list[str]:
        return shlex.split(self.line.format(**places))


def _case(when: str, line: str, *codes: int, says: str = "", **options: bool) -> Case:
    return Case(when, line, codes or (0,), says, **options)


CASES = (
    _case(NEW, "init {folder}/shop --pipeline shop", configured=False),
    _case(NEW, "init {folder}/shop", 2, says="would be overwritten", configured=False, slow=True),
    _case(NEW, "init {folder}/shop --pipeline shop --force", configured=False, slow=True),
    _case(NEW, "init {folder}/locked/shop", 2, says="cannot write", configured=False, slow=True),
    _case(NEW, "init", says="into this folder", slow=True, configured=False),
    _case(NEW, "version", says="0.1", configured=False, slow=True),
    _case(NEW, "--version", says="sluice 0.1", configured=False, slow=True),
    _case(NEW, "config validate", says="is valid"),
    _case(NEW, "config validate -c {folder}/missing.yaml", 2, says="sluice init", configured=False, slow=True),
    _case(NEW, "config show --no-color -v -q --log-format json", says="spool.max_delay"),
    _case(NEW, "config schema", says="properties", configured=False, slow=True),
    _case(NEW, "config env", says="SLUICE_SOURCE__DSN", slow=True),
    _case(NEW, "jars fetch", says="jars", configured=False, slow=True),
    _case(NEW, "jars fetch --s3 --to {folder}/jars", says="jars", configured=False, slow=True),
    _case(NEW, "completion bash", says="_SLUICE_COMPLETE", configured=False, slow=True),
    _case(NEW, "completion zsh", says="compdef", configured=False, slow=True),
    _case(NEW, "completion fish", says="complete", configured=False, slow=True),
    _case(NEW, "statsu", 2, says="status", configured=False, slow=True),
    _case(NEW, "status --colour", 2, says="--help", configured=False, slow=True),
    _case(NEW, "setup --dry-run", says="missing", slow=True),
    _case(NEW, "setup --print-sql", says="CREATE PUBLICATION", forms=False, slow=True),
    _case(NEW, "setup --ddl-signal", says="CREATE EVENT TRIGGER", forms=False, slow=True),
    _case(NEW, "setup --apply", 2, says="--ddl-signal", slow=True),
    _case(NEW, "check --sql-out {folder}/fix.sql", forms=False),
    _case(NEW, "check --strict --sql-out {folder}/strict.sql", 0, 3, forms=False, slow=True),
    _case(NEW, "check --strict --object-store", 0, 3, says="call", slow=True),
    _case(NEW, "check --sql-out {folder}/missing/fix.sql", 2, says="cannot be written", forms=False, slow=True),
    _case(NEW, "check --sql-out {folder}/locked/fix.sql", 2, says="cannot be written", forms=False, slow=True),
    _case(NEW, "check --object-store", slow=True),
    _case(NEW, "status", 11, says="new"),
    _case(NEW, "status --fleet {folder}", 11, 12, says="shop", configured=False),
    _case(NEW, "status --fleet {folder}/empty", 2, says="no configuration", configured=False, slow=True),
    _case(
        NEW, "fleet {folder}/empty --listen 127.0.0.1:0", 2, says="no pipeline to run", configured=False, forms=False
    ),
    _case(NEW, "fleet {folder}/nowhere", 2, says="is not a folder", configured=False, forms=False, slow=True),
    _case(NEW, "apply --fleet {folder}/empty", 2, says="no pipeline to run", configured=False, forms=False, slow=True),
    _case(NEW, "apply --workers 2", 2, says="--fleet", configured=False, forms=False, slow=True),
    _case(NEW, "slot show", says="has not run yet"),
    _case(NEW, "tables", slow=True),
    _case(NEW, "slot advance --to {lsn} --confirm {slot}", 2, says="no manifest", slow=True),
    _case(NEW, "slot recreate --confirm {slot}", 2, says="no manifest", slow=True),
    _case(NEW, "setup", says="slot", forms=False),
    _case(RUNNING, "status --top 3", 0, 9, says="healthy"),
    _case(RUNNING, "tables --columns", says="public.wide"),
    _case(RUNNING, "tables --sort lag", says="public.wide", slow=True),
    _case(RUNNING, "tables --state live --sort name", says="live", slow=True),
    _case(RUNNING, "tables --state stale", slow=True),
    _case(RUNNING, "tables --sort rows --state stale --state gap", slow=True),
    _case(RUNNING, "tables --json pause public.ints", 2, says="stands before the command", forms=False, slow=True),
    _case(RUNNING, "wait --now --timeout 400s", says="can be read as of"),
    _case(RUNNING, "wait --now", says="can be read as of", slow=True),
    _case(RUNNING, "wait --lsn 0/1 --timeout 400s public.ints", says="can be read as of", slow=True),
    _case(RUNNING, "wait --lsn FF/0 --timeout 1s", 75, says="did not come to"),
    _case(RUNNING, "wait --now --lsn 0/1", 2, says="give either", slow=True),
    _case(RUNNING, "query 'SELECT count(*) AS rows_of_ints FROM ints'", says="rows_of_ints"),
    _case(RUNNING, "query 'SELECT * FROM public.ints' --as-of latest -o csv"),
    _case(RUNNING, "query 'SELECT * FROM ints' --as-of 0/1", 2, says="does not offer", slow=True),
    _case(RUNNING, "query 'SELECT * FROM nothing'", 2, says="nothing", slow=True),
    _case(RUNNING, "views --engine duckdb", says="delta_scan"),
    _case(RUNNING, "views --engine spark public.ints --as-of latest", says="VERSION AS OF", slow=True),
    _case(RUNNING, "views --engine databricks public.ints public.texts", says="VERSION AS OF", slow=True),
    _case(RUNNING, "blame public.ints 1", says="in the spool"),
    _case(RUNNING, "blame public.ints", 2, says="Missing argument", forms=False, slow=True),
    _case(RUNNING, "blame public.ints 1 2", 2, says="2 values were given", slow=True),
    _case(RUNNING, "plan", says="tables that would not change"),
    _case(RUNNING, "plan public.ints public.wide", says="public.wide", slow=True),
    _case(RUNNING, "plan public.ints", says="public.ints", slow=True),
    _case(RUNNING, "plan --seconds 1 --sql 'ALTER TABLE moods ADD COLUMN more int'", 0, 13, says="public.moods"),
    _case(RUNNING, "plan --sql 'ALTER TABLE nothing ADD COLUMN more int'", 5, forms=False, slow=True),
    _case(RUNNING, "drain --timeout 10m", says="the lake has everything through", slow=True),
    _case(RUNNING, "drain", says="the lake has everything through", slow=True),
    _case(RUNNING, "drain --to-lsn 0/1 --timeout 10m", says="the lake has everything through", slow=True),
    _case(RUNNING, "drain --to-lsn FF/0 --timeout 1s", 75, slow=True),
    _case(RUNNING, "drain --to-lsn nonsense", 2, slow=True),
    _case(RUNNING, "spool ls --last 3", says="through"),
    _case(RUNNING, "spool ls", says="through", slow=True),
    _case(RUNNING, "spool inspect {entry}", says="previous sha256"),
    _case(RUNNING, "spool inspect data --values 1", 2, slow=True),
    _case(RUNNING, "spool inspect {segment}", says="rows", slow=True),
    _case(RUNNING, "spool inspect {segment} --values 3", forms=False, slow=True),
    _case(RUNNING, "spool verify", says="compared"),
    _case(RUNNING, "spool verify --content", says="hashes", slow=True),
    _case(RUNNING, "spool gc", slow=True),
    _case(RUNNING, "spool gc --retention until_applied", says="--yes deletes"),
    _case(RUNNING, "spool gc --plan --retention 36h", says="sluice rebuild", slow=True),
    _case(RUNNING, "spool gc --retention 36h --yes", says="deleted", slow=True),
    _case(RUNNING, "slot show", says="{slot}"),
    _case(RUNNING, "slot drop --confirm {slot}", 8, says="stop the pipeline first"),
    _case(RUNNING, "slot drop --confirm another", 2, says="nothing was done", slow=True),
    _case(RUNNING, "slot drop", 2, says="nothing was done", slow=True),
    _case(RUNNING, "slot recreate", 2, says="nothing was done", slow=True),
    _case(RUNNING, "slot recreate --upgraded", 2, says="nothing was done", slow=True),
    _case(RUNNING, "slot advance --to {lsn}", 2, says="nothing was done", slow=True),
    _case(RUNNING, "slot advance --to {lsn} --confirm {slot}", 8, says="stop the pipeline first", slow=True),
    _case(RUNNING, "slot recreate --confirm {slot}", 2, says="nothing is lost", slow=True),
    _case(RUNNING, "slot recreate --upgraded --confirm {slot}", 2, says="leave out --upgraded", slow=True),
    _case(RUNNING, "setup", says="exists"),
    _case(RUNNING, "setup --ddl-signal --apply", says="there", slow=True),
    _case(RUNNING, "run", 8, says="another process", slow=True),
    _case(RUNNING, "apply", 8, says="another applier", slow=True),
    _case(RUNNING, "up", 8, says="another process"),
    _case(RUNNING, "tables pause public.moodz", 2, says="public.moods", slow=True),
    _case(RUNNING, "tables pause 'nowhere.*'", 2, says="matches no table", slow=True),
    _case(RUNNING, "tables pause '!public.ints'", 2, says="leave out", slow=True),
    _case(RUNNING, "tables pause public.moods 'public.l*' '!public.lists_none'", says="public.lists will be paused"),
    _case(RUNNING, "tables resume 'public.[lm]*s'", says="public.moods will be resumed"),
    _case(RUNNING, "tables resync public.moods", says="will be resynced"),
    _case(RUNNING, "resync 'public.text?'", says="public.texts will be resynced"),
    _case(RUNNING, "resync public.texts public.uuids", says="public.uuids will be resynced", slow=True),
    _case(RUNNING, "resync public.nothing", 2, says="nearest", slow=True),
    _case(RUNNING, "tables remove public.scratch", says="DROP TABLE ONLY", slow=True),
    _case(RUNNING, "tables remove --apply 'public.scr*'", says="will not be followed"),
    _case(RUNNING, "tables add public.scratch", says="ADD TABLE ONLY", slow=True),
    _case(RUNNING, "tables add --apply public.scratch", says="will be followed"),
    _case(RUNNING, "verify public.moodz", 2, says="public.moods", forms=False),
    _case(RUNNING, "verify public.wide --max-load 100 --wait 400 --keys 5", says="equal", forms=FULL, slow=True),
    _case(RUNNING, "verify", says="tables are equal", forms=False, slow=True),
    _case(RUNNING, "verify public.ints --max-load 25", says="equal", forms=False, slow=True),
    _case(RUNNING, "verify --keys 1000", says="tables are equal", forms=False, slow=True),
    _case(RUNNING, "verify --repair", says="tables are equal", forms=False, slow=True),
    _case(RUNNING, "verify --continuous --interval 1s", 2, says="at least", forms=False, slow=True),
    _case(RUNNING, "verify --continuous-ended", says="no longer expected", forms=False, slow=True),
    _case(STOPPED, "status", 10, says="stopped"),
    _case(STOPPED, "tables pause public.moods", says="no ingest runs"),
    _case(STOPPED, "tables resume public.moods", says="the next one carries out the request", slow=True),
    _case(STOPPED, "run --until-caught-up", forms=False),
    _case(STOPPED, "run --until-lsn {lsn}", forms=False),
    _case(STOPPED, "apply --once", forms=False),
    _case(RUNNING, "replay --to latest --lake {folder}/lake", 2, says="has no scheme", slow=True),
    _case(RUNNING, "replay --to latest --lake {lake}/inside", 2, says="a separate address", slow=True),
    _case(
        RUNNING, "replay --to latest --lake file://{folder}/replayed --dry-run public.ints", says="nothing was written"
    ),
    _case(RUNNING, "replay --to FF/0 --lake file://{folder}/replayed", 2, says="the spool ends at", slow=True),
    _case(RUNNING, "replay --to noon --lake file://{folder}/replayed", 2, says="neither an LSN nor a time", slow=True),
    _case(RUNNING, "replay --to latest --lake file://{folder}/replayed public.ints", says='"rows"', slow=True),
    _case(STOPPED, "rebuild public.ints", says="nothing was changed"),
    _case(STOPPED, "rebuild public.nothing", 2, says="is not the name", slow=True),
    _case(STOPPED, "rebuild public.ints --yes", forms=False, slow=True),
    _case(STOPPED, "slot advance --to {lsn} --confirm {slot}", says="is at"),
    _case(STOPPED, "slot advance --to FF/0 --confirm {slot}", 2, says="would lose", slow=True),
    _case(LOST, "slot show", says="MISSING"),
    _case(LOST, "status", 7, says="slot.lost"),
    _case(LOST, "run", 7, says="MISSING", forms=False),
    _case(LOST, "check", 7, says="lost", slow=True),
    _case(LOST, "slot drop --confirm {slot}", 7, says="does not exist", slow=True),
    _case(LOST, "slot recreate --confirm {slot}", says="has a gap", forms=False),
)
"""In the order of the day."""
ELSEWHERE = {
    ("up",): "it is the day itself, and Ctrl-C ends it",
    ("fleet", "--token-path"): "a fleet runs until it is stopped: tests/e2e/test_fleet.py",
    ("fleet", "--workers"): "likewise",
    ("apply", "--workers"): "with --fleet: tests/e2e/test_apply_fleet.py",
    ("status", "--watch"): "on a terminal, until Ctrl-C",
    ("status", "--interval"): "with --watch",
    ("verify", "--continuous"): "until Ctrl-C",
}
"""Options that the story itself uses."""
DOCUMENTED = Path(__file__).parents[3] / "docs" / "cli.md"
_FORMS = ("json_wanted", "form")

Call = tuple[tuple[str, ...], frozenset[str], int]
"""A command, its options beside those of all commands, and how many names it is given: 2 for several."""


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that can be given, with its path."""
    for name, command in group.commands.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def command_of(words: list[str]) -> tuple[str, ...]:
    return _meant(words)[0]


def can_answer_in_json(words: list[str]) -> bool:
    return any(parameter.name == "json_wanted" for parameter in _meant(words)[1].params)


def missing() -> list[str]:
    """Commands and options without a case."""
    given: dict[tuple[str, ...], set[str]] = {}
    for case in CASES:
        words = case.words(folder="f", lake="l", lsn="0/0", slot="s", entry="1", segment="k")
        path, _ = _meant(words)
        given.setdefault(path, set()).update(word.partition("=")[0] for word in words)
    wanted = []
    for path, command in commands():
        seen = given.get(path, set())
        if path not in given and path not in ELSEWHERE:
            wanted.append(" ".join(path))
        for parameter in command.params:
            formed = parameter.name in (*NAMES, *_FORMS)
            if isinstance(parameter, click.Option) and not formed and (*path, parameter.opts[0]) not in ELSEWHERE:
                wanted += [] if seen & set(parameter.opts) else [f"{' '.join(path)} {parameter.opts[0]}"]
    everywhere = set().union(*given.values())
    shared = [one for one in cli.params if one.name in NAMES and one.name != "config"]
    return wanted + [option.opts[-1] for option in shared if not everywhere & set(option.opts)]


def undocumented_calls() -> list[str]:
    """Calls that the page of the command line shows and that neither a case nor the story makes."""
    made = {_call(case.words(folder="f", lake="l", lsn="0/0", slot="s", entry="1", segment="k")) for case in CASES}
    wanted = []
    for line in DOCUMENTED.read_text().splitlines():
        if line.startswith("sluice ") and "[" not in line:
            for part in re.split(r"&&|[|>]|\s{2,}", line):
                words = shlex.split(part)
                if words[:1] == ["sluice"] and not _in_the_story(_call(words[1:])) and _call(words[1:]) not in made:
                    wanted.append(part.strip())
    return wanted


def _in_the_story(call: Call) -> bool:
    path, options, _ = call
    return path in ELSEWHERE or any((*path, option) in ELSEWHERE for option in options)


def _call(words: list[str]) -> Call:
    path, command = _meant(words)
    rest = words[len(path) :] if tuple(words[: len(path)]) == path else []
    given, _, order = command.make_parser(click.Context(command, ignore_unknown_options=True)).parse_args(rest)
    names = {one.name for one in order if isinstance(one, click.Option)} - {*NAMES, *_FORMS}
    options = {one.opts[0] for one in command.params if one.name in names}
    arguments = [given.get(one.name or "") for one in command.params if isinstance(one, click.Argument)]
    several = sum(len(one) if isinstance(one, tuple | list) else one is not None for one in arguments)
    return path, frozenset(options), min(several, 2)


def _meant(words: list[str]) -> tuple[tuple[str, ...], click.Command]:
    """The command of a line, as far as it is one."""
    path: tuple[str, ...] = ()
    command: click.Command = cli
    for word in words:
        if isinstance(command, click.Group) and word in command.commands:
            command, path = command.commands[word], (*path, word)
    return path, command
