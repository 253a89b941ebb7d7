"""A host that is not this machine proves who it is, unless the configuration says loudly that it need not."""

from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice.operate.check.preflight import run_preflight
from sluice.source.sessions import SourceOptions, open_query, open_replication, ping_rejected, transport_of
from tests.support import canary

ELSEWHERE = "db.invalid"


def options(dsn: str, *, allow_insecure: bool = False) -> SourceOptions:
    return SourceOptions(
        dsn=dsn, slot="s", publication="p", application_name="a", connect_timeout_s=5, allow_insecure=allow_insecure
    )


LOCAL = [
    "host=127.0.0.1",
    "host=localhost",
    "host=/var/run/postgresql",
    "host=::1",
    "dbname=d",
    "postgresql://u@127.0.0.8/d",
    "host=db hostaddr=127.0.0.1",
]


@pytest.mark.parametrize("dsn", LOCAL)
@pytest.mark.parametrize("mode", ["", " sslmode=disable"])
def test_this_machine_needs_no_certificate(dsn: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    asked = dsn + (("?sslmode=disable" if "://" in dsn else mode) if mode else "")
    assert transport_of(options(asked)) == transport_of(options("host=127.0.0.1"))


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca"])
def test_another_machine_is_refused_by_the_mode_that_proves_nothing(mode: str) -> None:
    asked = options(f"host={ELSEWHERE} password={canary.SECRET} sslmode={mode}")
    for connect in (open_query, open_replication, ping_rejected):
        with pytest.raises(
            UsageError,
            match=f"sslmode={mode} does not verify the identity of the server, and {ELSEWHERE} is not this machine",
        ) as caught:
            connect(asked)
        assert "source.allow_insecure" in caught.value.hint
    (finding,) = run_preflight(asked, None).findings
    assert (finding.code, finding.severity) == ("source.tls", "critical")


@pytest.mark.parametrize(
    "dsn",
    [
        f"host={ELSEWHERE}",
        f"host=127.0.0.1,{ELSEWHERE}",
        f"host=localhost hostaddr=10.1.2.3 dbname={ELSEWHERE}",
        "service=elsewhere",
        f"host={ELSEWHERE} sslmode=verify-full",
    ],
)
def test_without_a_mode_verify_full_is_taken(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "prefer")
    seen = transport_of(options(dsn))
    assert (seen.sslmode, seen.problem, seen.refused) == ("verify-full", "", False)


def test_a_host_of_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", ELSEWHERE)
    assert transport_of(options("dbname=d")).sslmode == "verify-full"


def test_the_loud_setting_lets_the_connection_string_decide_and_says_what_is_not_proven() -> None:
    seen = transport_of(options(f"host={ELSEWHERE} sslmode=require", allow_insecure=True))
    assert (seen.refused, seen.sslmode) == (False, "require")
    assert "sslmode=require does not verify" in seen.problem
    assert transport_of(options(f"host={ELSEWHERE} sslmode=verify-full", allow_insecure=True)).problem == ""


def test_a_private_key_and_its_password_are_in_no_error(tmp_path: Path) -> None:
    key = tmp_path / "client.key"
    key.write_text(f"-----BEGIN PRIVATE KEY-----\n{canary.SECRET}\n-----END PRIVATE KEY-----\n")
    key.chmod(0o600)
    (tmp_path / "client.crt").write_text(f"-----BEGIN CERTIFICATE-----\n{canary.SECRET}\n-----END CERTIFICATE-----\n")
    asked = (
        f"host=127.0.0.1 port=1 sslmode=require sslkey={key} sslcert={tmp_path}/client.crt "
        f"sslpassword={canary.SECRET} password={canary.SECRET}"
    )
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
        open_query(options(asked))
    assert canary.SECRET not in str(caught.value)
