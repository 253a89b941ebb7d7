"""The documentation as a site: every page is in its navigation, its links lead somewhere, and it builds."""

import re
import sys
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.extent import slow
from tools.site import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = commands.ended(sys.executable, "-m", "tools.site", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_every_page_is_in_the_navigation_once() -> None:
    named = pages.navigated(ROOT)
    whole = [str(page.relative_to(DOCS)) for page in pages.pages(DOCS)]
    alone = [name for name in whole if not name.startswith(tuple(f"{folder}/" for folder in pages.FOLDERS))]
    assert sorted(named) == sorted([*alone, *pages.FOLDERS])


def test_a_link_out_of_the_documentation_is_text_or_leads_to_the_given_address(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "how").mkdir(parents=True)
    for name in ("README.md", "index.md", "a.md"):
        (docs / name).write_text("# A\n")
    page = docs / "how" / "b.md"
    page.write_text(
        "[a](../a.md#x) [`code`](../../src/c.py) [list](../README.md) [web](https://x.y/)\n```\n[z](q)\n```\n"
    )
    kept = "[a](../a.md#x) {} [list](../index.md) [web](https://x.y/)\n```\n[z](q)\n```\n"
    assert pages.linked(page, docs, tmp_path, code="") == kept.format("`code`")
    assert pages.linked(page, docs, tmp_path, code="https://c") == kept.format("[`code`](https://c/src/c.py)")


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere"])
def test_a_link_to_nowhere_fails_the_build(tmp_path: Path, link: str) -> None:
    """So that the site, which is built the same way, has none."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(f"# A\n\n[no]({link})\n")
    validation = re.findall(r"^validation:.*$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    settings = ("site_name: A", "docs_dir: source", "site_dir: html", *validation, "")
    (tmp_path / "mkdocs.yml").write_text("\n".join(settings))
    assert commands.ended(sys.executable, "-m", "zensical", "build", "--strict", cwd=tmp_path).returncode != 0


@slow
def test_every_image_of_the_built_site_is_there(site: Path) -> None:
    pages_built = list(site.rglob("*.html"))
    shown = [(page, src) for page in pages_built for src in re.findall(r'<img[^>]* src="([^":?#]+)"', page.read_text())]
    assert shown
    assert [f"{page}: {src}" for page, src in shown if not (page.parent / src).is_file()] == []


@slow
def test_programs_find_every_page_as_markdown(site: Path) -> None:
    listed = re.findall(r"\]\((.+\.md)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(listed) == len(pages.pages(DOCS))
    assert [name for name in listed if not (site / name).is_file()] == []
