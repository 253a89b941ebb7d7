"""`verify --continuous` runs for weeks, and what it proves itself with is replaced meanwhile."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.contract.row_form import LakeQuestion
from sluice.operate.compare.verify import Run
from sluice.process import lake_reader
from tests.support.command_line import Sluice
from tests.unit.cli.conftest import CANARY

QUESTION = LakeQuestion("1", 1, 1, 1, 1, 6, False, 1.0, ())


def test_a_comparison_without_end_takes_passwords_and_keys_as_they_are_now(
    configured: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = configured / "sluice.yaml", list[tuple[str, str, str]]()

    class Process:
        def __init__(self, _: Any, *, environment: Mapping[str, str]) -> None:
            self.options = json.loads(environment["SLUICE_APPLY_OPTIONS"])

        def send(self, _: LakeQuestion) -> None:
            seen[-1] = (seen[-1][0], *(self.options[name]["aws_secret_access_key"] for name in NAMES))

        def end(self, *, at_once: bool) -> None: ...

    def runs(self: Run, *, rest: Callable[[], None], **_: Any) -> None:
        for text in (file.read_text(), file.read_text().replace(CANARY, "next"), "no configuration"):
            file.write_text(text)
            given = self.source.credentials.parameters(self.source.dsn, check=lambda: None)
            seen.append((given["password"], "", ""))
            self.ask(QUESTION)
            rest()

    lake = f'lake: {{uri: "file://{configured}/lake", options: {{aws_secret_access_key: {CANARY}}}}}'
    file.write_text(file.read_text().replace(f'lake: {{uri: "file://{configured}/lake"}}', lake))
    monkeypatch.setattr(lake_reader, "LakeReaderProcess", Process)
    monkeypatch.setattr(Run, "for_ever", runs)
    sluice("verify", "--continuous", cwd=configured)
    assert seen == [(CANARY,) * 3, ("next",) * 3, ("next",) * 3]


NAMES = ("spool_options", "lake_options")
