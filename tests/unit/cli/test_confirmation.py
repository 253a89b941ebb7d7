"""What is irreversible waits for a person's own word; where nobody can type it, nothing is done."""

import subprocess
from pathlib import Path

import pytest

from tests.support import commands


@pytest.mark.parametrize("words", ["drop", "recreate", "recreate --upgraded", "advance --to 0/1"])
def test_a_question_that_nobody_answers_is_a_usage_error_and_no_interrupt(configured: Path, words: str) -> None:
    done = commands.sluice("slot", *words.split(), cwd=configured, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, "nothing was done" in done.stderr) == (2, "", True), done.stderr
    assert "--confirm" in done.stderr
