"""Settings reach the packages they are for."""

from pathlib import Path

import pytest

from sluice.cli import wiring
from sluice.errors import UsageError
from sluice.settings import Settings, load
from sluice.settings.display import fingerprint
from sluice_spark.options import ApplyOptions


def _settings(folder: Path, *, more: str = "", source: str = "", spool: str = "", password: str = "one") -> Settings:
    file = folder / "sluice.yaml"
    file.write_text(
        f"version: 1\npipeline: shop\nsource: {{dsn: 'host=nowhere password={password}'{source}}}\n"
        f"spool: {{uri: 'file:///var/spool'{spool}}}\nlake: {{uri: 'file:///var/lake'}}\n{more}"
    )
    return load(str(file), environ={}).settings


def test_the_configured_delay_bounds_both_places_where_a_change_waits(tmp_path: Path) -> None:
    """In the stream's batch, and in the entry that is being built: the longer of the two would be what a user gets."""
    options = wiring.ingest_options(_settings(tmp_path, spool=", max_delay: 300ms"), instance="one")
    assert (options.stream.max_delay_s, options.flush.max_delay_s) == (0.3, 0.3)


@pytest.mark.parametrize(("given", "expected"), [("127.0.0.1:0", "127.0.0.1:0"), ("off", ""), ("", "")])
def test_the_applier_gets_the_address_to_listen_on_and_off_is_none(tmp_path: Path, given: str, expected: str) -> None:
    settings = _settings(tmp_path, more=f'telemetry: {{apply_listen: "{given}"}}\n')
    options = ApplyOptions.from_json(wiring.apply_options(settings, log_format="json"))
    assert options.listen == expected
    assert options.config_hash == fingerprint(settings)


def test_an_address_without_a_port_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"telemetry\.apply_listen"):
        _settings(tmp_path, more='telemetry: {apply_listen: "localhost"}\n')


def test_equal_settings_have_the_same_fingerprint_and_a_secret_has_none(tmp_path: Path) -> None:
    one = fingerprint(_settings(tmp_path))
    assert one == fingerprint(_settings(tmp_path, password="another"))
    assert one != fingerprint(_settings(tmp_path, more="apply: {workers: 3}\n"))
    assert 0 <= one < 2**48


def test_check_knows_which_limits_need_a_right_to_be_kept(tmp_path: Path) -> None:
    assert wiring.limits_to_see(_settings(tmp_path)) == ()
    limits = ", snapshot_max_stream_lag: 1GiB, snapshot_max_replica_lag: 9s, snapshot_max_active_sessions: 5"
    assert wiring.limits_to_see(_settings(tmp_path, source=limits)) == (
        "source.snapshot_max_replica_lag",
        "source.snapshot_max_active_sessions",
    )
