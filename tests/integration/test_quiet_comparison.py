"""A comparison while nobody writes: ingest records that it has passed the position of the snapshot when it is asked to,
however seldom it does so otherwise.
"""

from collections.abc import Callable
from functools import partial

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.row_form import LakeAnswer, LakeQuestion
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED
from sluice.errors import StoreRefused
from sluice.ingest.options import FlushPolicy
from sluice.manifest.targets import lake_tables
from sluice.operate.compare import verify
from sluice.operate.compare.comparing import Comparing, Comparison
from sluice.operate.compare.source_side import Load
from sluice.operate.compare.verify import Run
from sluice.operate.hastening import MOST_WAITING, hasten
from sluice.store.memory import MemoryStore
from sluice_spark.verify.version import wait_for
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.recorded import row

SELDOM = FlushPolicy(max_delay_s=0.05, progress_interval_s=3600.0)


def test_a_quiet_ingest_passes_the_position_of_a_comparison_at_once(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    asked: list[int] = []

    def ask(question: LakeQuestion) -> Callable[[], LakeAnswer]:
        asked.append(question.lsn)
        state = wait_for(pipeline.store, lsn=question.lsn, seconds=30.0)
        assert state.through_lsn >= question.lsn
        return lambda: LakeAnswer(refused="there is no lake here")

    with pipeline.running(flush=SELDOM, request_interval_s=0.2):
        comparing = Comparing(
            pipeline.known(), ask, load=Load(), wait_seconds=30.0, hasten=partial(hasten, pipeline.store)
        )
        for _ in range(2):
            (verdict,) = comparing.compare(list(lake_tables(pipeline.state(), lambda _: (LakeTarget(),)).values()))
            assert verdict.reason == "there is no lake here"
    assert len(set(asked)) == 2
    assert list(pipeline.store.list(keys.CONTROL)) == []


def test_what_the_applier_says_behind_the_position_is_not_taken_for_what_it_said_before(
    pipeline: IngestPipeline,
) -> None:
    """A row that came before the position and went behind it leaves no commit, and an applier that has looked at both
    changes says that it has applied them.
    """
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    ((key, state),) = lake_tables(pipeline.state(), lambda _: (LakeTarget(),)).items()
    said: list[AppliedTable] = []

    def says(_: int = 0) -> None:
        number = len(said) + 1
        said.append(row(state.table_name, table_id=key, through_seq=number))
        log = AppliedLog(number, "a", "2030-01-01T00:00:00+00:00", {key: said[-1]})
        pipeline.store.create(keys.apply_log(number), log.encode())

    def ask(question: LakeQuestion) -> Callable[[], LakeAnswer]:
        says()
        assert question.before == said[0] != said[-1]
        return lambda: LakeAnswer(refused="there is no lake here")

    says()
    run = Run.of(
        pipeline.options().source,
        pipeline.store,
        ask,
        load_share=1.0,
        wait_seconds=60.0,
        targets_of=lambda _: (LakeTarget(),),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "hasten", lambda _, lsn: says(lsn))  # the snapshot is there, and its position is known
        (verdict,) = run.compared([state])
    assert verdict.reason == "there is no lake here"


def test_rows_that_are_left_out_on_purpose_are_no_difference_to_be_repaired(pipeline: IngestPipeline) -> None:
    """With `source.origin: none` the source may have rows from elsewhere."""
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", origin="none")

    def ask(question: LakeQuestion) -> Callable[[], LakeAnswer]:
        return lambda: LakeAnswer(delta_version=1, base_lsn=question.lsn)

    run = Run.of(
        pipeline.options(origin="none").source,
        pipeline.store,
        ask,
        load_share=1.0,
        wait_seconds=60.0,
        targets_of=lambda _: (LakeTarget(),),
    )
    (verdict,) = run.repaired(list(run.lake_tables().values()))
    assert (verdict.outcome, verdict.passing) == (NOT_COMPARED, False)
    assert verdict.reason.startswith("1 row differs, which may be what replication brought to the source")
    assert run.record.read().tables[verdict.key].differences == 0
    pipeline.execute("DELETE FROM t")
    assert run.compared(list(run.lake_tables().values()))[0].outcome == EQUAL


def test_hints_that_nobody_takes_do_not_pile_up_and_need_no_right() -> None:
    store = MemoryStore("p")
    for number in range(2 * MOST_WAITING):
        hasten(store, number)
    assert len(list(store.list(keys.CONTROL))) == MOST_WAITING

    class ReadOnly(MemoryStore):
        def create(self, key: str, data: bytes | memoryview) -> None:
            raise StoreRefused("no right to write")

    hasten(ReadOnly("q"), 1)


@slow
def test_what_was_different_stays_so_when_it_cannot_be_compared_again_after_its_repair(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    said: list[Comparison] = []

    def ask(question: LakeQuestion) -> Callable[[], LakeAnswer]:
        answer = LakeAnswer(refused="it is stale") if said else LakeAnswer(delta_version=1, base_lsn=question.lsn)
        return lambda: answer

    run = Run.of(
        pipeline.options().source,
        pipeline.store,
        ask,
        load_share=1.0,
        wait_seconds=60.0,
        targets_of=lambda _: (LakeTarget(),),
    )
    with pipeline.running(request_interval_s=0.2):
        (verdict,) = run.repaired(list(run.lake_tables().values()), said.append)
    assert [one.outcome for one in (*said, verdict)] == [DIFFERENT, DIFFERENT]
