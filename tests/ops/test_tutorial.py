"""The tutorial, followed literally: each command, its exit code, and the lines that it promises.

It begins with Python, Java and psql, and installs the wheel of this checkout in an environment of its own: nothing of
the development environment is there.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import markdown
from tests.support.installed import environment_with, pip_variables
from tests.support.maven import repository_on_disk
from tools.local.jvm import QUICK
from tools.local.postgres import PostgresServer, temporary_server

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PLACEHOLDER = "127.0.0.1:5432"
INSTALLED = "sluice-cdc[all]"
BACKEND = re.findall(r"hatchling==[0-9.]+", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
_MARK = "@@block"
_DEADLINE_SECONDS = 900.0
"""From nothing to the end. pip takes most of it where its cache is empty."""
_JAVA = f"-XX:+UseParallelGC {QUICK}"
"""A minute of Spark: the second compiler would cost more than it gives back."""


@pytest.fixture
def fresh_server() -> Iterator[PostgresServer]:
    with temporary_server() as server:
        yield server


def environment(directory: Path, server: PostgresServer) -> dict[str, str]:
    """A user's shell: a plain `python3`, `java` and `psql` on the path, and nothing of ours. pip takes the versions of
    the lock.
    """
    programs = directory / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.base_prefix + f"/bin/python3.{sys.version_info.minor}")
    plain = {
        name: value
        for name, value in repository_on_disk(directory).items()
        if not name.startswith(("PG", "PYTHON", "VIRTUAL_ENV")) and name != "SERVER"
    }
    ours = {str(Path(sys.executable).parent), str(ROOT)}
    path = [str(programs), str(server.bin_dir), *(one for one in plain["PATH"].split(os.pathsep) if one not in ours)]
    return {
        **plain,
        **pip_variables(directory),
        "PATH": os.pathsep.join(path),
        "JAVA_TOOL_OPTIONS": _JAVA,
        "COLUMNS": "200",
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside that of the readers, which `[all]` takes in, as an index would have both. One environment builds both."""
    folder = tmp_path_factory.mktemp("dist")
    hatchling = environment_with(BACKEND, tmp_path_factory.mktemp("backend")).with_name("hatchling")
    for source in (ROOT, ROOT / "lake"):
        build = [str(hatchling), "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    return next(folder.glob("sluice_cdc-*.whl"))


def followed(script: str, *, cwd: Path, environ: dict[str, str]) -> str:
    """What a shell and all that it started print, to its end or to the deadline; nothing of it is
    left running.
    """
    output = cwd.with_name("output")
    with output.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            shell.wait(_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    return output.read_text(encoding="utf-8")


@pytest.mark.timeout(_DEADLINE_SECONDS + 120)
def test_the_tutorial_does_what_it_says_with_the_wheel_alone(
    tmp_path: Path, fresh_server: PostgresServer, wheel: Path
) -> None:
    found = markdown.blocks(TUTORIAL)
    commands = [block for block in found if block.language == "sh"]
    promised = {
        number: after.text
        for number, (block, after) in enumerate(zip(found, [*found[1:], found[0]], strict=True))
        if after.language == "text"
    }
    script = ""
    assert INSTALLED in commands[0].text
    for block in commands:
        text = block.text.replace(PLACEHOLDER, f"127.0.0.1:{fresh_server.port}").replace(INSTALLED, f"{wheel}[all]")
        script += f"{text}status=$?\necho\necho '{_MARK} {block.line}' $status\n[ $status = 0 ] || exit\n"
    work = tmp_path / "work"
    work.mkdir()
    printed = followed(
        script, cwd=work, environ={**environment(tmp_path, fresh_server), "PIP_FIND_LINKS": str(wheel.parent)}
    )
    seen: dict[int, str] = {}
    output = ""
    for line in printed.splitlines():
        if line.startswith(_MARK):
            seen[int(line.split()[1])] = output
            assert line.split()[2] == "0", (
                f"the block in line {line.split()[1]} ended with {line.split()[2]}:\n{output}"
            )
            output = ""
        else:
            output += line + "\n"
    assert list(seen) == [block.line for block in commands], f"not all blocks were run; after them: {output}"
    for number, text in promised.items():
        _keeps(seen[found[number].line], text)
    log = (work / "shop" / "sluice.log").read_text(encoding="utf-8")
    assert "fetching jars" in log, "the first start fetches what the user does not have"
    assert str(ROOT) not in log


def _keeps(output: str, promised: str) -> None:
    """Each promised line is there, in this order; in it the words in this order. The ellipsis
    stands for anything.
    """
    lines = iter(output.splitlines())
    for wanted in promised.splitlines():
        assert any(_has(line, wanted.replace("…", " ").split()) for line in lines), (
            f"{wanted!r} is not in, or not in this order:\n{output}"
        )


def _has(line: str, words: list[str]) -> bool:
    position = 0
    for word in words:
        position = line.find(word, position)
        if position < 0:
            return False
        position += len(word)
    return True


def test_the_commands_of_the_readme_are_those_of_the_tutorial() -> None:
    """In the same order, so that running the one runs the other."""

    def commands(page: str) -> list[str]:
        blocks = [block.text for block in markdown.blocks(page) if block.language == "sh"]
        return [line.split("  #")[0].strip() for text in blocks for line in text.splitlines()]

    shown = commands(markdown.section((ROOT / "README.md").read_text(encoding="utf-8"), "## Use it"))
    run = iter(commands(TUTORIAL))
    assert shown
    for command in shown:
        assert any(line == command or line.startswith((f"{command} ", f"{command} |")) for line in run), (
            f"{command!r} is not run by the tutorial"
        )
