"""`python -m service.cli.docs` writes the pages that are generated from code: commands, configuration, metrics, exit codes, findings, problems."""

from collections.abc import Callable
from pathlib import Path

from service.cli import cli, exits, findings, reference
from service.cli.templates import GRANTS
from service.health import problems
from service.settings import present
from service.telemetry.page import page as metrics_page

PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": lambda: reference.page(cli),
    "docs/configuration.md": present.page,
    "docs/metrics.md": metrics_page,
    "docs/exit-codes.md": exits.page,
    "docs/findings.md": findings.page,
    "docs/problems.md": problems.page,
    "deploy/postgres/grants.sql": lambda: GRANTS.replace("@PIPELINE@", "main"),
}


def write(root: Path) -> None:
    for name, page in PAGES.items():
        (root / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
