"""Whether a pipeline can go on: from its slot, and from its manifest. The proof is the one that
`run` makes before it streams, but for the log of the server, which facts do not have. Pure.
"""

from sluice.errors import ManifestCorrupt, SlotLost, SourceUnavailable
from sluice.manifest.values import PipelineState
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts, SlotFacts


def lost_from(state: PipelineState, server: ServerFacts, slot: SlotFacts | None) -> SlotLost | None:
    """Why a pipeline at `state` cannot go on from `slot`; None when it can, or is new."""
    if state.opened is None:
        return None
    try:
        # Whether the configuration wants two_phase is not asked here: that is a setting to correct,
        # not a loss.
        prove_continuity(
            state.opened, state.through_lsn, server=server, slot=slot, two_phase=slot.two_phase if slot else False
        )
    except SlotLost as error:
        return error
    except SourceUnavailable:
        # Not known to be lost; `run` waits until the server can say.
        return None
    return None


def lost_between(
    before: PipelineState, after: PipelineState, server: ServerFacts, slot: SlotFacts | None
) -> SlotLost | None:
    """As `lost_from`, for a server that was asked between the two states of one manifest. Ingest
    goes on meanwhile: the server may be behind the later state and the slot ahead of the earlier
    one, and neither is a loss.
    """
    first, lost = lost_from(before, server, slot), lost_from(after, server, slot)
    return lost if first is not None and lost is not None and _case(first) == _case(lost) else None


def _case(lost: SlotLost) -> str:
    return str(lost).partition(":")[0]


def check_holds(seen: PipelineState, written: PipelineState) -> None:
    """Raises ManifestCorrupt unless `seen`, read after `written` was stored by this process, can be
    the same manifest.
    """
    if seen.seq < written.seq:
        raise ManifestCorrupt(
            f"the manifest ends at entry {seen.seq}, and this process has stored entry {written.seq}: "
            "objects of the spool are gone",
            hint="stop ingest and the applier; was the spool deleted, unmounted, or cut by a lifecycle "
            "rule? restore it, then `sluice spool verify`",
        )
    if seen.seq == written.seq and seen.previous_sha256 != written.previous_sha256:
        raise ManifestCorrupt(
            f"manifest entry {seen.seq} is not the one that this process has stored",
            hint="was the spool replaced? `sluice spool verify`",
        )
