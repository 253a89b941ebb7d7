"""What is read again for a connection: only credentials may change, and nothing a command writes is seen."""

import sys
import time
from pathlib import Path

import pytest
import structlog

from sluice.errors import SourceError, SourceRefused, SourceUnavailable, UsageError
from sluice.source import credentials
from sluice.source.credentials import PATIENCE_SECONDS, Credentials
from sluice.telemetry import logs
from tests.support import canary

DSN = "host=db.invalid dbname=shop user=sluice"


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def answer(*command: str) -> dict[str, object]:
    return Credentials(command=command).parameters(DSN, check=lambda: None)


@pytest.mark.parametrize("changed", ["host=other.invalid", "dbname=other", "port=5433", "sslmode=disable"])
def test_what_is_read_again_must_mean_the_same_server_protected_in_the_same_way(changed: str) -> None:
    read = f"{DSN} {changed} password={canary.SECRET}"
    with pytest.raises(UsageError, match=f"in {changed.partition('=')[0]}: only credentials may change") as caught:
        Credentials(reread=lambda: read).parameters(DSN, check=lambda: None)
    assert canary.SECRET not in str(caught.value)


def test_another_user_may_not_mean_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGDATABASE", raising=False)
    kept = Credentials(reread=lambda: "host=db.invalid user=sluice_2")
    with pytest.raises(UsageError, match="in dbname: only credentials may change"):
        kept.parameters("host=db.invalid user=sluice", check=lambda: None)
    monkeypatch.setenv("PGDATABASE", "shop")
    assert kept.parameters("host=db.invalid user=sluice", check=lambda: None)["user"] == "sluice_2"


def test_credentials_of_every_kind_are_taken_anew() -> None:
    fresh = DSN.replace("user=sluice", "user=sluice_2") + " password=new sslcert=/new.crt sslkey=/new.key"
    given = Credentials(reread=lambda: fresh).parameters(f"{DSN} password=old", check=lambda: None)
    assert (given["user"], given["password"], given["sslcert"]) == ("sluice_2", "new", "/new.crt")


def test_what_cannot_be_read_again_leaves_what_was_read_last() -> None:
    answers = [f"{DSN} password=new"]

    def read() -> str:
        if not answers:
            raise UsageError("unreadable")
        return answers.pop()

    kept = Credentials(reread=read)
    for _ in range(2):
        assert kept.parameters(f"{DSN} password=old", check=lambda: None)["password"] == "new"


def test_what_is_no_connection_string_leaves_what_was_read_last() -> None:
    """A quote too many in a new password ends no process that streams."""
    answers = [f"{DSN} password='{canary.SECRET}", f"{DSN} password=new"]
    kept = Credentials(reread=answers.pop)
    for _ in range(2):
        assert kept.parameters(f"{DSN} password=old", check=lambda: None)["password"] == "new"


@pytest.mark.parametrize("written", ["token", "token\\n", "token\\r\\n"])
def test_the_line_that_a_command_prints_is_the_password(written: str) -> None:
    assert answer(*program(f"print('{written}', end='')"))["password"] == "token"


def test_an_argument_is_never_read_by_a_shell() -> None:
    assert answer(*program("import sys; print(sys.argv[1])"), "$(id); *")["password"] == "$(id); *"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"import sys; print('{canary.SECRET}'); sys.exit('{canary.SECRET}')", "ended with exit status 1"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal 9"),
        ("pass", "did not print one line"),
        (f"print('{canary.SECRET}\\n{canary.SECRET}')", "did not print one line"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "did not print one line"),
    ],
)
def test_a_command_that_fails_is_tried_again_and_named_without_what_it_wrote(text: str, said: str) -> None:
    with pytest.raises(SourceUnavailable, match=said) as caught:
        answer(*program(text))
    assert canary.SECRET not in f"{caught.value}{caught.value.hint}"
    assert Path(sys.executable).name in str(caught.value)


def test_a_command_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SourceRefused, match=r"source\.password_command \(token\) cannot be run"):
        answer("/does/not/exist/token", canary.SECRET)


def test_a_command_that_takes_too_long_ends_with_what_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "COMMAND_SECONDS", 1.0)
    note = tmp_path / "note"
    child = f"import time; time.sleep(4); open({str(note)!r}, 'w')"
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="did not end within"):
        answer(*program(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"))
    assert time.monotonic() - began < 4
    assert not note.exists()


def test_a_command_that_prints_without_end_is_ended_before_it_fills_memory() -> None:
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="did not print one line"):
        answer("cat", "/dev/zero")
    assert time.monotonic() - began < credentials.COMMAND_SECONDS / 2


def test_a_command_ends_when_nobody_waits_for_it() -> None:
    def check() -> None:
        raise SourceUnavailable("stopping")

    with pytest.raises(SourceUnavailable, match="stopping"):
        Credentials(command=program("import time; time.sleep(60)")).parameters(DSN, check=check)


def test_a_password_that_a_command_printed_is_cut_out_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    answer(*program("print('printed-by-a-command')"))
    structlog.get_logger("test").warning("seen", text="it is printed-by-a-command")
    assert "printed-by-a-command" not in capsys.readouterr().err


def test_a_refusal_is_final_unless_a_connection_of_its_kind_worked_a_short_time_ago() -> None:
    now = [0.0]
    kept = Credentials(clock=lambda: now[0])
    refused = SourceRefused("no")

    def judged(*, replication: bool) -> type[SourceError]:
        return type(kept.judged(refused, replication=replication))

    assert judged(replication=True) is SourceRefused
    kept.worked(replication=True)
    assert judged(replication=False) is SourceRefused
    assert judged(replication=True) is SourceUnavailable
    now[0] = PATIENCE_SECONDS
    kept.worked(replication=False)
    assert judged(replication=True) is SourceRefused
    kept.worked(replication=True)
    assert judged(replication=True) is SourceUnavailable
