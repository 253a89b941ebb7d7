"""Data on stdout: JSON or YAML for programs, tables for people.

Invariants: JSON is one document per answer with a `schema_version`; nothing else is ever written to
stdout beside it. A row of a table is one line.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from rich.table import Table
from rich.text import Text

from sluice.errors import UsageError
from sluice.printable import one_line

SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": ""}
FORM = "sluice.form"
"""In the `meta` of a command's context: what `-o` asked for."""
ANSWERED = "sluice.answered"
"""In the `meta` of a command's context: whether its document is written."""


def as_json(value: dict[str, Any]) -> None:
    """Writes one document; as YAML where that was asked for. Both forms hold the same values: YAML is
    made from the JSON, because its library refuses what is only derived from text or a number. Where stdout is not
    in Unicode, names are in ASCII.
    """
    meta = click.get_current_context().meta
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    document = json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False)
    meta[ANSWERED] = True
    if meta.get(FORM) == "yaml":
        document = yaml.safe_dump(json.loads(document), explicit_start=True, sort_keys=False, allow_unicode=unicode)
    click.echo(document.removesuffix("\n"))


def to_file(path: Path, text: str) -> None:
    """Beside the answer, which comes first. Raises UsageError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a folder that exists and is yours"
        ) from None


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Sequence[str] = ()
) -> Table:
    """A plain table; columns named in `right` are aligned to the right. Without any names there is
    no header.
    """
    drawn = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        show_header=any(columns),
    )
    for name in columns:
        drawn.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in row))
    return drawn


def amount(count: int | None, unit: str = "B") -> str:
    """Bytes for people, `-` when not known."""
    if count is None:
        return "-"
    size = float(count)
    for prefix in ("", "Ki", "Mi", "Gi", "Ti"):
        if size < 1024:
            return f"{size:.0f} {prefix}{unit}" if not prefix else f"{size:.1f} {prefix}{unit}"
        size /= 1024
    return f"{size:.1f} Pi{unit}"


def duration(seconds: float | None) -> str:
    """A time for people, two units at most, `-` when not known."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 60:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    if hours < 24:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(days)} d {int(hours % 24)} h" if days < 1000 else "more than 1000 d"


def number(value: float) -> str:
    """A rate for people."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
