"""`python -m tools.docs` writes the pages that are generated from code."""

from collections.abc import Callable
from pathlib import Path

from sluice.cli import cli, exits, findings_view
from sluice.cli.templates import GRANTS
from sluice.health import problems
from sluice.settings import display
from tools.docs import commands, metrics, types
from tools.release import licenses

PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": lambda: commands.page(cli),
    "docs/configuration.md": display.page,
    "docs/metrics.md": metrics.page,
    "docs/types.md": types.page,
    "docs/exit-codes.md": exits.page,
    "docs/findings.md": findings_view.page,
    "docs/problems.md": problems.page,
    "docs/licenses.md": licenses.page,
    "deploy/postgres/grants.sql": lambda: GRANTS.replace("@PIPELINE@", "main"),
}


def write(root: Path) -> None:
    for name, page in PAGES.items():
        (root / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
