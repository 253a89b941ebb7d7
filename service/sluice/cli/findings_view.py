"""Findings for people: on the terminal, as a script of SQL, as a page.

Invariant: a script does nothing that destroys, widens rights or was not thought through: such lines
are comments, whatever names the source has.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from sluice.cli.output import SEVERITY_STYLES
from sluice.findings import BY_CODE, KINDS, SEVERITIES, Finding, Step
from sluice.printable import HIDDEN, one_line, sql

_HEADINGS = {
    Step.RESTART: "Settings that need a restart of the server",
    Step.RIGHTS: "Privileges of the role",
    Step.TABLES: "Tables",
    Step.PUBLICATION: "The publication",
    Step.SETTINGS: "Settings of the server",
    Step.SLOT: "The slot",
    Step.SESSIONS: "Sessions and prepared transactions",
    Step.ELSEWHERE: "Not SQL",
}


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """The gravest first, then as the documentation has them."""
    codes = list(BY_CODE)
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), codes.index(finding.code)))


def show(console: Console, findings: Sequence[Finding], not_examined: Sequence[tuple[str, str]]) -> None:
    """One finding a paragraph, and what was not looked at."""
    for finding in findings:
        seen = f": {one_line(finding.seen)}"
        head = (
            (f"{finding.severity:8} ", SEVERITY_STYLES[finding.severity]),
            (one_line(finding.object), "bold"),
            seen,
            (f"  [{finding.code}]", "dim"),
        )
        console.print(Text.assemble(*head))
        if finding.fix_sql:
            statement = sql(finding.fix_sql) or HIDDEN
            # Never folded to the width of a terminal: a statement is there to be copied.
            console.print(
                Text(f"         SQL: {statement}" + ("  (read before you run it)" if finding.by_hand else "")),
                soft_wrap=True,
            )
        if finding.fix_setting or finding.needs_restart:
            restart = " (needs a restart of the server)" if finding.needs_restart else ""
            console.print(
                Text(f"         {'or' if finding.fix_sql else 'do'}: {one_line(finding.fix_setting)}{restart}")
            )
    for what, how in not_examined:
        console.print(Text(one_line(f"not checked: {what}" + (f": {how}" if how else "")), style="dim"))


def script(findings: Sequence[Finding], *, pipeline: str) -> str:
    """All SQL of the findings in an order that works, for psql."""
    lines = [
        (
            f"-- What `sluice check` proposes for pipeline {pipeline}. Run it with psql in the source "
            "database, as a superuser or as the owner of the tables."
        ),
        (
            "-- A statement that destroys something, widens privileges or has a placeholder is a comment: "
            "read it, then decide."
        ),
    ]
    for step, heading in _HEADINGS.items():
        part = [finding for finding in findings if BY_CODE[finding.code].step is step]
        if part:
            lines += ["", f"-- {heading}", *(line for finding in part for line in _lines(finding))]
        if any(finding.needs_restart and finding.fix_sql for finding in part):
            lines.append("-- Restart the server now; what follows needs it.")
    return "\n".join([*lines, ""])


def _lines(finding: Finding) -> Iterator[str]:
    """A comment of one line however hostile the names are, then the SQL; behind a comment sign in
    every line when it is for a person to run.
    """
    seen = " ".join(f"{finding.severity} {finding.code}, {finding.object}: {finding.seen}".split())
    yield f"-- {seen}"
    if finding.fix_setting:
        yield f"--   {' '.join(finding.fix_setting.split())}"
    for line in finding.fix_sql.splitlines():
        yield f"-- {line}" if finding.by_hand else line


def page() -> str:
    """docs/findings.md."""
    rows = [f"| `{kind.code}` | {', '.join(kind.severities)} | {kind.meaning} | {kind.remedy} |" for kind in KINDS]
    return "\n".join([_PAGE_HEAD, *rows, ""])


_PAGE_HEAD = """\
# What `sluice check` finds

Codes are stable: scripts may depend on them.

* `critical`: the pipeline cannot run, or the lake would be wrong. `check` ends with 3, or with 7 if
  the slot is lost.
* `warning`: something harms the source or will harm it. With `--strict`, `check` ends with 3 too.
* `info`: you should know it.

Each finding names the object, what was found there, and the exact SQL or setting that fixes it. You
see it on the terminal, with `--json`, and in the file of `--sql-out`.

<!-- Generated from service/sluice/findings/ by `make docs`; `make check` compares. -->

| code | severity | meaning | remedy |
|---|---|---|---|"""
