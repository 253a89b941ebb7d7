"""`verify --continuous` runs for weeks, and what it proves itself with is replaced meanwhile."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.contract.row_form import LakeAnswer, LakeQuestion
from sluice.operate.compare.verify import Run
from sluice.process import lake_reader
from tests.support.command_line import Sluice
from tests.unit.cli.conftest import CANARY, begun, table

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


def test_a_comparison_without_end_knows_the_targets_that_tables_have_by_now(
    configured: Path, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its sides: the one that chooses what is compared, and the process that reads the lake."""
    file = configured / "sluice.yaml"
    seen: list[tuple[list[str], list[str], int]] = []
    started: list[Any] = []

    class Process:
        def __init__(self, _: Any, *, environment: Mapping[str, str]) -> None:
            self.options = json.loads(environment["SLUICE_APPLY_OPTIONS"])
            started.append(self)

        def send(self, _: LakeQuestion) -> None: ...

        def receive(self, _: float) -> LakeAnswer:
            return LakeAnswer()

        def end(self, *, at_once: bool) -> None: ...

    def runs(self: Run, **_: Any) -> None:
        log = begun(configured)[1]
        log.append(table("7", "events"))
        first = file.read_text()
        second = first.replace("[{kind: changelog}]", "[{kind: changelog}, {kind: mirror, name: now}]")
        moved = second.replace("mirror, name: now", "mirror, name: moved").replace("/lake", "/elsewhere")
        for text in (first, first, second, "no configuration", moved):
            if text != file.read_text():
                file.write_text(text)
            chosen = sorted(state.title for state in self.lake_tables().values())
            self.ask(QUESTION)()
            known = [target.get("name", "") for target in started[-1].options["tables"]["public.events"]["targets"]]
            seen.append((chosen, known, len(started)))

    monkeypatch.setattr(lake_reader, "LakeReaderProcess", Process)
    monkeypatch.setattr(Run, "for_ever", runs)
    said = sluice("verify", "--continuous", cwd=configured).stderr
    before, now = (["public.events"], [""]), (["public.events", "public.events/now"], ["", "now"])
    assert seen == [(*before, 1), (*before, 1), (*now, 2), (*now, 2), (*now, 2)]
    assert "lake.uri cannot change while a process runs" in said
