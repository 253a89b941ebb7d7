"""What the applier says of a table: how far it is, and why it does not move."""

from service.manifest.follow import load_state
from service.store.memory import MemoryStore
from spark_jobs.delta import Place
from spark_jobs.ledger import Ledger, restore
from spark_jobs.options import ApplyOptions
from spark_jobs.table import Applied
from spark_jobs.window import Window
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA


def test_a_window_that_is_tried_again_shows_why_until_it_is_applied() -> None:
    store = MemoryStore("ledger", prefix="shop/")
    manifest = Manifest(store)
    manifest.table(SCHEMA)
    manifest.copy([], SCHEMA)
    seq = manifest.transaction([Change("i", {"id": 1})], SCHEMA)
    state = load_state(store)
    ledger = Ledger(ApplyOptions("shop", "memory://s", "memory://l"), state)
    known = restore(state.tables["16385"], None, place=Place(1, seq))
    ledger.begin({"16385": known})
    known.failed("Spark could not commit (SparkException)", now=0.0, passing=False)
    row = ledger.report()["16385"]
    assert (row.state, row.reason) == ("live", known.trouble)
    ledger.applied(known, Window((), seq), Applied(Place(2, seq), seq, 1, 1))
    assert ledger.report()["16385"].reason == ""
