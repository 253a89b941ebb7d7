"""What a fleet's applier tries again by itself, and what waits for a person."""

import uuid
from typing import Any, cast

import pytest

from sluice.cli import wiring
from sluice.errors import ApplyError, ServiceError, UsageError, WriterFenced
from sluice.settings.model import Settings
from sluice.store.memory import MemoryStore
from sluice_spark.fleet import Pipeline
from sluice_spark.lease import Lease
from sluice_spark.options import ApplyOptions


def configured(spool: str) -> Settings:
    return Settings.model_validate(
        {
            "version": 1,
            "pipeline": "shop",
            "source": {"dsn": "postgresql://h/d", "tables": ["public.*"]},
            "spool": {"uri": spool},
            "lake": {"uri": "file:///lake"},
        }
    )


@pytest.mark.parametrize("spool", ["s3://bucket/spool", "file:///spool"])
def test_the_lease_of_a_killed_applier_needs_no_person_however_long_it_lasts(spool: str) -> None:
    """In another container nobody can see that the holder is dead: the lease has to run out."""
    settings = configured(spool)
    options = ApplyOptions.from_json(wiring.apply_options(settings, log_format="json"))
    one = Pipeline(options, cast("Any", None), cast("Any", None))
    held = Lease(MemoryStore(uuid.uuid4().hex), seconds=options.lease_seconds, idle_seconds=options.idle_lease_seconds)
    held.acquire()
    held.renew(idle=True)
    assert one.may_pass(WriterFenced("another"), after=held.lasts)
    assert wiring.left_behind_seconds(settings) > held.lasts, "`up` waits as long"


@pytest.mark.parametrize(
    ("failure", "passes"), [(ApplyError(""), True), (WriterFenced(""), False), (UsageError(""), False)]
)
def test_another_owner_and_a_refused_configuration_wait_for_a_person(failure: ServiceError, passes: bool) -> None:
    options = ApplyOptions.from_json(wiring.apply_options(configured("s3://bucket/spool"), log_format="json"))
    one = Pipeline(options, cast("Any", None), cast("Any", None))
    assert one.may_pass(failure, after=10_000) is passes
