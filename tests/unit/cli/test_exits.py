"""Exit codes are a contract, and errors say what to do without showing what must not be seen."""

import json
import re
from collections.abc import Callable

import click
import pytest

from sluice import errors
from sluice.cli import cli, exits
from sluice.errors import Disposition, ServiceError
from tools.docs import commands

ROW_VALUE = "row-value-canary"
_BY_CODE = {
    1: ("DecodeError", "ProtocolViolation"),
    2: ("UsageError", "LimitReached"),
    3: ("PreflightFailed",),
    4: ("VerificationFailed",),
    5: ("SourceUnavailable", "TableUnavailable", "NoFreeConnection", "SourceRefused"),
    6: ("StoreRefused", "ManifestCorrupt", "FormatTooNew"),
    7: ("SlotLost",),
    8: ("SlotBusy", "WriterFenced"),
    9: ("TablesStopped",),
    75: ("StoreUnavailable", "ApplyError", "Interrupted", "SourceMoved"),
}
CONTRACT = {name: code for code, names in _BY_CODE.items() for name in names}


def ending(action: Callable[[], object]) -> click.Command:
    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> object:
        return action()

    return command


def raising(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return ending(fail)


@pytest.mark.parametrize(("name", "code"), CONTRACT.items())
def test_each_error_ends_the_process_with_its_own_code_and_no_traceback(
    name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = getattr(errors, name)("the slot sluice_shop is gone", hint="resync the tables")
    assert exits.execute(raising(error), []) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == "error: the slot sluice_shop is gone\nhint: resync the tables\n"


def test_every_error_that_can_end_the_process_is_in_the_contract() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ServiceError)]
    parents = {base for value in classes for base in value.__bases__} - {errors.SourceUnavailable}  # raised itself
    leaves = [value for value in classes if value not in parents and value.disposition is not Disposition.LOCAL]
    assert {value.__name__ for value in leaves} == set(CONTRACT)
    assert {value.exit_code for value in leaves} <= set(exits.MEANINGS)


def test_with_json_the_failure_is_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.execute(raising(errors.SlotLost("MISSING: no slot", hint="copy again")), ["--json"]) == 7
    seen = capsys.readouterr()
    assert json.loads(seen.out) == {
        "schema_version": 1,
        "error": {"class": "SlotLost", "message": "MISSING: no slot", "hint": "copy again", "exit_code": 7},
    }
    assert "error: MISSING: no slot" in seen.err


def test_an_unexpected_error_shows_its_place_and_never_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.execute(raising(ValueError(ROW_VALUE)), ["--json"]) == 1
    seen = capsys.readouterr()
    assert ROW_VALUE not in seen.out + seen.err
    assert "test_exits.py" in seen.err
    assert "ValueError" in seen.err
    assert json.loads(seen.out)["error"]["exit_code"] == 1


def test_a_wrong_option_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.execute(ending(lambda: None), ["--jason"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_interruption_is_130_and_success_0_or_the_code_of_a_child() -> None:
    assert exits.execute(raising(KeyboardInterrupt()), []) == 130
    assert exits.execute(raising(click.Abort()), []) == 130
    assert exits.execute(ending(lambda: None), []) == 0
    assert exits.execute(ending(lambda: 6), []) == 6


def test_a_command_lists_every_exit_code_that_its_help_names() -> None:
    sections = commands.page(cli).split("\n## ")[1:]
    assert len(sections) > 30
    for section in sections:
        said, listed = section.rsplit("Exit codes: ", 1)
        named = set(re.findall(r"\b[Ee]nds? with (\d+)", said))
        assert named <= set(re.findall(r"\d+", listed)), section.splitlines()[0]
