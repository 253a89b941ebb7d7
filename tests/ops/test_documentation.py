"""The documentation is whole: links lead somewhere, promises name tests that exist, every page can
be found.
"""

import re
from pathlib import Path

import click
import pytest

from sluice.contract import consumer, keys
from tests.support import markdown

ROOT = Path(__file__).parents[2]
PAGES = markdown.pages(ROOT)
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PROOF = re.compile(r"`((?:[a-z0-9_]+/)+\w+\.py)::(test_\w+)`")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for link in markdown.links(read(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            fragment and target.suffix == ".md" and fragment not in markdown.anchors(read(target))
        ):
            broken.append(link)
    assert broken == []


def test_rows_of_tables_are_whole_and_no_broken_sentence_becomes_an_item_of_a_list() -> None:
    found = {str(page): [*markdown.uneven_rows(read(page)), *markdown.stray_numbers(read(page))] for page in PAGES}
    assert {page: lines for page, lines in found.items() if lines} == {}


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        waiting += [
            (page.parent / link.partition("#")[0]).resolve()
            for link in markdown.links(read(page))
            if not re.match(r"[a-z]+:|#", link)
        ]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_every_guarantee_names_tests_that_exist() -> None:
    rows = [
        line for line in GUARANTEES.splitlines() if line.startswith("| ") and not line.startswith(("| what ", "| **"))
    ]
    assert len(rows) > 20
    assert [row for row in rows if not PROOF.search(row)] == []
    missing = [f"{path}::{test}" for path, test in PROOF.findall(GUARANTEES) if f"def {test}(" not in _source(path)]
    assert missing == []


def test_the_page_on_backups_names_every_folder_of_a_spool() -> None:
    text = read(ROOT / "docs" / "operations" / "backup.md")
    of_keys = [value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)]
    folders = {f"{key.partition('/')[0]}/" for key in (*of_keys, consumer.FOLDER) if "/" in key}
    assert folders >= {"manifest/", "apply/", "consumers/"}
    assert {folder for folder in folders if f"`{folder}`" not in text} == set()


def _source(path: str) -> str:
    file = ROOT / "tests" / path
    return read(file) if file.is_file() else ""


def test_a_commands_name_in_the_documentation_is_a_command() -> None:
    from sluice.cli import cli

    named = {
        (page.name, match[1], match[2])
        for page in PAGES
        for match in re.finditer(r"`sluice ([a-z]+)(?: ([a-z]+))?[` ]", read(page))
    }
    wrong = []
    for page, group, command in named:
        found = cli.commands.get(group)
        if found is None or (command and hasattr(found, "commands") and command not in found.commands):
            wrong.append(f"{page}: sluice {group} {command or ''}")
    assert wrong == []


def _unknown_options(words: list[str]) -> list[str]:
    """Those behind `sluice` that its command does not have."""
    from sluice.cli import cli

    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]


def test_an_option_in_the_documentation_is_one_of_its_command() -> None:
    wrong = []
    for page in PAGES:
        text = read(page)
        lines = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`", text)]
        lines += [line for block in markdown.blocks(text) for line in block.text.splitlines()]
        for line in lines:
            for command in re.findall(r"(?:^|[ /(])sluice ([a-z][^#|&;>`\"')]*)", line):
                wrong += [f"{page.name}: sluice {command}: {one}" for one in _unknown_options(command.split())]
    assert wrong == []
    assert _unknown_options(["tables", "add", "a", "--aply"]) == ["--aply"]
    assert _unknown_options(["tables", "--json"]) == _unknown_options(["replay", "--to=latest", "a.b"]) == []


def test_the_checker_itself_finds_what_is_broken() -> None:
    page = "# A b, `c`\n\n```sh\n[x](no.md)\n```\n`[y](no.md)` [z](there.md#a)\n## Again\n## Again\n"
    assert list(markdown.links(page)) == ["there.md#a"]
    assert markdown.anchors(page) == {"a-b-c", "again", "again-1"}
    assert [block.language for block in markdown.blocks(page)] == ["sh"]
    assert markdown.section(page, "# A b, `c`").startswith("\n```sh")
    head = "| a | b |\n|---|---|\n"
    assert markdown.uneven_rows(f"{head}| `x|y` | 2 |\n| 3 | 4\\|5 |\n") == []
    assert markdown.uneven_rows(f"{head}| 1 | 2 | | 3 | 4 |\n") == ["| 1 | 2 | | 3 | 4 |"]
    assert markdown.uneven_rows(f"{head}| 1 | 2 | And then.\n") == ["| 1 | 2 | And then."]
    assert markdown.stray_numbers("1. a\n2. b\n   c\n\nends with\n7. And then\n") == ["7. And then"]
    assert markdown.stray_numbers("1. a\n\n   ```sh\n   b\n   ```\n\n2. c\n\n# d\n\n1. e\n") == []
