"""Reduced states beside the log, so that a start does not read every entry.

Invariant: a checkpoint is a cache of the chain and never a second truth: it carries the hash of the
entry it stands on and is used only if that entry is there with that hash. An unreadable one is
passed over for an older one; one that contradicts its entry is ManifestCorrupt.
"""

from collections.abc import Callable

from sluice.contract import codec, keys
from sluice.contract.entries import digest
from sluice.errors import ManifestCorrupt, ObjectExists, ObjectMissing
from sluice.manifest import entry_lookup, horizon
from sluice.manifest.state import from_json, to_json
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore

EVERY_ENTRIES = 200
"""At one entry every two seconds a start reads at most seven minutes' worth."""
FORMAT_VERSION = 1


def write(store: ObjectStore, state: PipelineState) -> None:
    """Stores `state` at its number. Raises StoreError, which its caller may ignore: nothing depends
    on a checkpoint.
    """
    content = to_json(state)
    sealed = {"format_version": FORMAT_VERSION, "state_sha256": _digest(content), "state": content}
    try:
        store.create(keys.checkpoint(state.seq), codec.encode(sealed))
    except ObjectExists:
        # Ours after a lost reply: equal chains give equal checkpoints, and a reader compares each
        # with its chain.
        return


def newest(store: ObjectStore, *, wanted: Callable[[PipelineState], bool] = lambda _: True) -> PipelineState:
    """The state of the newest readable checkpoint that is `wanted`, the empty state if there is none or what follows
    it was pruned. Raises ManifestCorrupt, FormatTooNew, StoreError.
    """
    for key in sorted(store.list(keys.CHECKPOINTS), reverse=True):
        state = _read(store, key)
        if state is None or not wanted(state):
            continue
        found = entry_lookup.find(store, state.seq)
        if found is None and state.seq <= horizon.floor_seq(store):
            break
        if found is None:
            hint = "was it deleted by a lifecycle rule? restore it"
            raise ManifestCorrupt(f"manifest entry {state.seq} is missing, though a checkpoint refers to it", hint=hint)
        if found.sha256 != state.previous_sha256:
            raise ManifestCorrupt(
                f"manifest entry {state.seq} is not the one that its checkpoint refers to: one of the two "
                "was replaced or damaged"
            )
        return state
    return PipelineState()


def _read(store: ObjectStore, key: str) -> PipelineState | None:
    try:
        value = codec.parse(store.get(key), key)
        codec.check_version(value, version=FORMAT_VERSION, what=key)
        if value["state_sha256"] != _digest(value["state"]):
            return None
        return from_json(value["state"])
    except (KeyError, ObjectMissing, ManifestCorrupt, RecursionError):
        return None


def _digest(content: object) -> str:
    return digest(codec.encode(content))
