"""Object keys: where each thing lives below `<spool.uri>/<pipeline>/`, and how names become path
parts.

Invariant: any identifier gives one key, two identifiers give two keys (on any store that keeps
case), and no key leaves the prefix.
"""

import re
from functools import lru_cache

from sluice.errors import ManifestCorrupt

LONGEST_FOLDER = 255
"""Bytes of one part of a path, on every file system that lakes are kept on."""
OF_ITS_OWN = "~t"
_SAFE = re.compile(rb"[A-Za-z0-9_-]")
_KNOWN_NAMES = 10_000
"""Each look at the catalog asks about the same names again."""

MANIFEST = "manifest/"
CHECKPOINTS = "manifest/checkpoint/"
ARCHIVES = "archive/"
DATA = "data/"
STAGE = "stage/"
CONTROL = "control/"
REFUSED = "control/refused/"
REPAIRS = "repair/"
PROBES = "probe/"
VERIFIED = "verify/log/"
APPLY = "apply/"
APPLY_LEASE = "apply/lease.json"
APPLY_LOG = "apply/log/"
APPLY_COMPLETE = "apply/complete/"
HORIZONS = "gc/"
CLEANED = "gc/cleaned/"
FLOORS = "gc/floor/"

_SEGMENT_KEY = re.compile(r"\Adata/[^/]+/(\d{8})-(\d{10})\.parquet\Z")
_STAGED_KEY = re.compile(r"\Astage/(\d{8})/\d+/(\d{10})\.parquet\Z")
_REPAIR_KEY = re.compile(r"\Arepair/(\d{20})-[0-9a-f]{32}/\d{6}\.parquet\Z")
_PROBE_KEY = re.compile(r"\Aprobe/(\d{20})-[0-9a-f]{32}/.+\Z")
_CONTROL_KEY = re.compile(r"\Acontrol/(refused/)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\.json\Z")
_MANIFEST_KEY = re.compile(r"\Amanifest/(\d{16})\.json\Z")


def manifest_entry(seq: int) -> str:
    return f"{MANIFEST}{seq:016d}.json"


def manifest_seq(key: str) -> int:
    """The sequence number in a manifest entry's key. Raises ManifestCorrupt for any other key."""
    match = _MANIFEST_KEY.match(key)
    if match is None:
        raise ManifestCorrupt(f"unexpected object in the manifest: {key}")
    return int(match[1])


def is_manifest_entry(key: str) -> bool:
    return _MANIFEST_KEY.match(key) is not None


def archive(last_seq: int) -> str:
    """Beside the manifest and not below it: a listing of the newest entries need not pass it."""
    return f"{ARCHIVES}{last_seq:016d}.jsonl.gz"


def checkpoint(seq: int) -> str:
    return f"{CHECKPOINTS}{seq:016d}.json"


def segment(table_id: str, epoch: int, counter: int) -> str:
    """Unique for ever: an epoch is never reused and its counter only grows."""
    return f"{DATA}{table_id}/{epoch:08d}-{counter:010d}.parquet"


def staged(epoch: int, xid: int, counter: int) -> str:
    return f"{STAGE}{epoch:08d}/{xid}/{counter:010d}.parquet"


def segment_folder(table_id: str) -> str:
    """Below it a table's segments sort by epoch, then by counter."""
    return f"{DATA}{table_id}/"


def stage_folder(epoch: int) -> str:
    return f"{STAGE}{epoch:08d}/"


def placed(key: str) -> tuple[int, int] | None:
    """(epoch, counter) of a segment or a staged body; None for any other key. One epoch never uses
    a counter twice, whatever the folder.
    """
    match = _SEGMENT_KEY.match(key) or _STAGED_KEY.match(key)
    return (int(match[1]), int(match[2])) if match else None


def apply_log(number: int) -> str:
    return f"{APPLY_LOG}{number:016d}.json"


def apply_complete(number: int) -> str:
    return f"{APPLY_COMPLETE}{number:016d}.json"


def verified(number: int) -> str:
    return f"{VERIFIED}{number:016d}.json"


def record_number(key: str) -> int:
    """The number in the key of an `apply_log`, an `apply_complete` or a `verified`; 0 for an empty key."""
    return int(key.rpartition("/")[2].removesuffix(".json") or 0)


def horizon(through_seq: int) -> str:
    return f"{HORIZONS}{through_seq:016d}.json"


def cleaned(through_seq: int) -> str:
    return f"{CLEANED}{through_seq:016d}.json"


def floor(first_seq: int) -> str:
    return f"{FLOORS}{first_seq:016d}.json"


def control_request(token: str) -> str:
    """Requests are carried out in the order of their keys."""
    return f"{CONTROL}{token}.json"


def repair_token(begun_ns: int, unique: str) -> str:
    """Names a repair whose rows are read from `begun_ns` on (unix time); `unique` has 32 hexadecimal digits."""
    return f"{begun_ns:020d}-{unique}"


def repair_rows(token: str, counter: int) -> str:
    """Rows that came with the request `token`, a `repair_token`, until ingest has made a segment of them."""
    return f"{REPAIRS}{token}/{counter:06d}.parquet"


def is_repair_rows(key: str) -> bool:
    """Whether `key` is one of `repair_rows`: a request may name anything."""
    return _REPAIR_KEY.match(key) is not None


def repair_begun(key: str) -> float | None:
    """When the repair of these rows began (unix time); None for any other key."""
    match = _REPAIR_KEY.match(key)
    return int(match[1]) / 1e9 if match else None


def probe_folder(begun_ns: int, unique: str) -> str:
    """Of the objects with which a store is tried from `begun_ns` on (unix time); `unique` has 32 hexadecimal digits."""
    return f"{PROBES}{begun_ns:020d}-{unique}/"


def probe_begun(key: str) -> float | None:
    """When the trial of this object began (unix time); None for any other key."""
    match = _PROBE_KEY.match(key)
    return int(match[1]) / 1e9 if match else None


def refused_request(key: str) -> str:
    """Where ingest says why it could not carry out the request at `key`."""
    return REFUSED + key.removeprefix(CONTROL)


def is_control(key: str) -> bool:
    """Whether a key below CONTROL may be a request or a refusal. People and tools leave other
    things there, some of which no store could read.
    """
    return _CONTROL_KEY.match(key) is not None


@lru_cache(_KNOWN_NAMES)
def path_part(name: str) -> str:
    """`name` as one path part: bytes outside A-Z a-z 0-9 _ - become `~` and two hexadecimal digits, and so does the
    first one of the name that Delta's own folder has: readers look for the first folder of that name in a path.
    Reversible, never empty, `.` or `..`.
    """
    if name == "_delta_log":
        return "~5fdelta_log"
    return "".join(
        chr(byte) if _SAFE.match(bytes((byte,))) else f"~{byte:02x}" for byte in name.encode("utf-8", "surrogateescape")
    )


def lake_path(schema_name: str, table_name: str) -> str:
    """Where a table's Delta table lives below `<lake.uri>`, unless its state says otherwise."""
    return f"{path_part(schema_name)}/{path_part(table_name)}"


def lake_path_of_its_own(oid: int, schema_name: str, table_name: str) -> str:
    """Where it lives while another table has the path of its name. No name gives such a path: in
    those, `~` comes before two hexadecimal digits.
    """
    folder = f"{path_part(table_name)}{OF_ITS_OWN}{oid}"
    return f"{path_part(schema_name)}/{folder if len(folder) <= LONGEST_FOLDER else f'{OF_ITS_OWN}{oid}'}"


def beside(path: str, name: str) -> str:
    """Where the lake table called `name` stands that is fed by the table whose own is at `path`: beside it."""
    folder, _, own = path.rpartition("/")
    _, of_its_own, oid = own.partition(OF_ITS_OWN)
    return f"{folder}/{path_part(name)}{of_its_own}{oid}"


def target_key(table_id: str, name: str) -> str:
    """By which a lake table is known among all of the pipeline. Without a `name` it has that of its source table."""
    return f"{table_id}/{name}" if name else table_id


def target_title(schema_name: str, table_name: str, name: str) -> str:
    """What people see of it."""
    return f"{schema_name}.{table_name}/{name}" if name else f"{schema_name}.{table_name}"


def is_of_its_own(lake_path: str) -> bool:
    """Whether a path is one of `lake_path_of_its_own`."""
    return OF_ITS_OWN in lake_path
