"""Boundaries in a bucket are found, waited for and refused as those in a directory are."""

import pytest

from sluice.contract import boundary
from sluice.contract.applied import Complete
from sluice.store.opening import open_store
from sluice_lake import BoundaryExpired, Lake, LakeUnavailable, NoBoundary, UnusableArgument, WaitTimedOut
from sluice_spark.progress.offers import Offers
from tests.support.sources import Bucket


def _offers(moto: Bucket) -> Offers:
    store = open_store(f"{moto.uri}/lake", options=moto.options)
    return Offers(store, pipeline="shop", manifest=lambda: "m", retention_seconds=3600.0, require_owner=lambda: None)


def test_boundaries_in_a_bucket_are_found_and_waited_for(moto: Bucket) -> None:
    lake = Lake(f"{moto.uri}/lake", storage_options=moto.options)
    with pytest.raises(NoBoundary):
        lake.as_of()
    offers = _offers(moto)
    for number in (998, 999, 1000, 1001):
        assert offers.publish(Complete(number, number * 10, 1, "", {}), current_at=0.0)
    assert [one.number for one in lake.boundaries()] == [998, 999, 1000, 1001]
    assert lake.as_of(lsn=10_005).boundary.number == 1000
    assert lake.wait_for(10_010, timeout=5).number == 1001
    with pytest.raises(WaitTimedOut):
        lake.wait_for(10_011, timeout=0.3)
    with pytest.raises(BoundaryExpired, match="oldest boundary is 0/26FC"):
        lake.as_of(lsn=9_979)
    assert lake.pipeline == "shop"
    assert open_store(f"{moto.uri}/lake", options=moto.options).size(boundary.key("shop", 1001))


def test_a_store_that_refuses_or_cannot_be_opened_is_named_without_its_keys(moto: Bucket) -> None:
    options = {**moto.options, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(LakeUnavailable) as away:
        Lake(f"{moto.uri}/lake", storage_options=options).pipelines()
    with pytest.raises(UnusableArgument) as unknown:
        Lake(f"{moto.uri}/lake", storage_options={"no_such_option": "secret"})
    assert not any(value in f"{away.value}{unknown.value}" for value in ("secret", *moto.options.values()))
