"""`python -m tools.site [FOLDER]`: writes the sources of the site into build/site/source, and builds it with Zensical.

The pages of docs/ are read on a checkout as well, so that they link to code, which a site does not have: such
a link becomes its text, or leads to SITE_CODE where that address is given. Raises SystemExit when the build
has a warning.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.site import pages

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"


def main(site: Path = SITE) -> None:
    shutil.rmtree(site, ignore_errors=True)
    source = site / "source"
    pages.write(ROOT, source, code=os.environ.get("SITE_CODE", ""))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(pages.configuration(ROOT, site))]
    done = subprocess.run(command, cwd=site, check=False)  # noqa: S603 - our own command
    if done.returncode:
        sys.exit(done.returncode)
    # A page as Markdown lies beside the page: for programs, which llms.txt leads there.
    shutil.copytree(source, site / "html", dirs_exist_ok=True, ignore=shutil.ignore_patterns("index.md"))
    shutil.copy(source / "index.md", site / "html" / "index.md")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
