"""The fuzz targets: bytes in, nothing out, and only the errors that are declared may escape.

Each target also checks what must hold whatever the input is: positions never go back, and nothing
is acknowledged that the batch in which an error was found had brought. Inputs are the recordings'
own form, so that every recording is a seed: a byte of options, then frames, each behind its length
(four bytes).
"""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from sluice.contract.entries import Entry
from sluice.contract.receipt import DurableReceipt
from sluice.errors import DecodeError, FormatTooNew, LimitReached, ManifestCorrupt, ProtocolViolation
from sluice.ingest.assemble.assembler import Assembler, AssemblerLimits
from sluice.ingest.assemble.assembly import Assembly
from sluice.ingest.commit.watermark import Watermark
from sluice.lsn import MAX_STORED
from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import control_positions, join, relation_oids, stream_xids
from sluice.protocol.tuples import walk_rows

LIMITS = AssemblerLimits(open_streams=50, aborted_intervals=10_000)


def split(data: bytes) -> list[bytes]:
    """Frames behind their lengths; a length that is too long takes what there is, so that every
    input is some stream.
    """
    frames = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return frames


def spell(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def read_frames(frames: list[bytes], *, in_stream: bool, column_count: int) -> None:
    """Every public function of the decoder over `frames`. A DecodeError of one does not keep the
    next from its turn; anything else escapes.
    """
    try:
        table = join(frames)
    except DecodeError:
        return
    for index in control_positions(table).tolist():
        with contextlib.suppress(DecodeError):
            decode_control(table, index, in_stream=in_stream)
    every = np.arange(len(table))
    rows = np.setdiff1d(every, control_positions(table))
    for chosen in (rows, every):
        with contextlib.suppress(DecodeError):
            walk_rows(table, chosen, column_count, in_stream=in_stream)
        with contextlib.suppress(DecodeError):
            relation_oids(table, chosen, in_stream=in_stream)
        with contextlib.suppress(DecodeError):
            stream_xids(table, chosen)


def frames(data: bytes) -> None:
    """join, decode_control, walk_rows."""
    options = data[0] if data else 0
    read_frames(split(data[1:]), in_stream=bool(options & 1), column_count=(options >> 1) % 8)


def assemble(data: bytes) -> None:
    """Assembler over batches and connections, with the acknowledgements that a session would send."""
    options = data[0] if data else 0
    connections(split(data[1:]), batch=1 + (options & 15), per_connection=1 + 8 * (options >> 4))


def connections(frames: list[bytes], *, batch: int, per_connection: int) -> int:
    """`frames` in batches; a new connection after so many batches and after each error. Returns the
    position acknowledged last.
    """
    acknowledged = 0
    batches = [frames[at : at + batch] for at in range(0, len(frames), batch)]
    while batches:
        acknowledged, done = session(batches[:per_connection], start_lsn=acknowledged)
        batches = batches[done:]
    return acknowledged


def session(batches: list[list[bytes]], *, start_lsn: int) -> tuple[int, int]:
    """One connection: what it acknowledged and how many batches it took. After an error it takes no
    more, and acknowledges no more.
    """
    assembler = Assembler(start_lsn=start_lsn, limits=LIMITS)
    watermark = Watermark(start_lsn=start_lsn)
    watermark.receive(MAX_STORED)
    ended = start_lsn
    for number, part in enumerate(batches, 1):
        through = assembler.through_lsn
        try:
            assembly = assembler.feed(join(part))
            read_rows(assembly)
        except (DecodeError, ProtocolViolation, LimitReached):
            assert watermark.flushed_lsn == through
            return watermark.flushed_lsn, number
        for end_lsn in assembly.commits.end_lsn:
            assert ended < end_lsn <= assembly.through_lsn
            ended = end_lsn
        assert assembly.through_lsn >= through
        watermark.durable(DurableReceipt(seq=number, through_lsn=assembly.through_lsn))
    return watermark.flushed_lsn, len(batches)


def read_rows(assembly: Assembly) -> None:
    """What the builder does with the rows before anything of the batch can be published."""
    for run in assembly.runs:
        assert len(run.rows) == len(run.ordinal) == len(run.xid)
        assert (run.body is None) == (run.lsn is not None)
        walk_rows(assembly.table, run.rows, len(run.relation.columns), in_stream=run.in_stream)


def copyrows(data: bytes) -> None:
    """Rows of a COPY, in one piece and chunk by chunk."""
    columns = data[0] % 8 if data else 0
    chunks = split(data[1:])
    for parts in ([chunks], [[chunk] for chunk in chunks]):
        reader = CopyRows(columns)
        with contextlib.suppress(DecodeError):
            for part in parts:
                reader.feed(part)
            reader.close()


def entry(data: bytes) -> None:
    """Manifest entries: what is read back is an entry, and the same one when it is written again."""
    try:
        found = Entry.decode(data)
    except (ManifestCorrupt, FormatTooNew):
        return
    with contextlib.suppress(ManifestCorrupt, FormatTooNew):
        assert Entry.decode(found.encode()) == found


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "assemble": assemble,
    "copyrows": copyrows,
    "entry": entry,
}


def seeds(name: str, recordings: dict[str, bytes], entries: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """(file name, input) of the corpus of target `name`, from recorded streams and copies and from
    written entries.
    """
    for source, data in entries.items() if name == "entry" else recordings.items():
        is_copy = source.rpartition("-")[2].startswith("copy")
        if name == "entry":
            yield source, data
        elif name == "copyrows" and is_copy:
            yield source, bytes([2]) + data
        elif name == "frames" and not is_copy:
            yield source, bytes([2 << 1]) + data
            yield f"{source}-in-stream", bytes([2 << 1 | 1]) + data
        elif name == "assemble" and not is_copy:
            yield source, bytes([15 | 15 << 4]) + data
            yield f"{source}-one-by-one", bytes([15 << 4]) + data
