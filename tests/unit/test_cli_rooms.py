"""Settings reach the rooms they are for."""

from pathlib import Path

from service.cli import rooms
from service.settings import load


def test_the_configured_delay_bounds_both_places_where_a_change_waits(tmp_path: Path) -> None:
    """In the stream's batch, and in the entry that is being built: the longer of the two would be what a user gets."""
    file = tmp_path / "sluice.yaml"
    file.write_text(
        "version: 1\npipeline: shop\nsource: {dsn: 'host=nowhere'}\nspool: {uri: 'file:///var/spool', max_delay: 300ms}\nlake: {uri: 'file:///var/lake'}\n"
    )
    options = rooms.ingest_options(load(str(file), environ={}).settings, instance="one")
    assert options.stream.max_delay_s == 0.3
    assert options.flush.max_delay_s == 0.3
