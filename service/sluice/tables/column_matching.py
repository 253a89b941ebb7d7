"""Which columns of the source a relation message names. Pure.

The wire has names and types, in the order of the attnums, and no attnum. The version before is known
exactly, the catalog as it is today: it may be ahead of the stream by any number of changes. Every
assignment of attnums that fits both is looked at.

Invariant: an assignment is taken when no other is possible whatever the columns were called in between,
and whatever types they had that leave no trace, or when it is the only one in which every column has the
name that it had before or has today. Without either, nothing is guessed. (PostgreSQL: pg_attribute; Logical
Replication Message Formats, Relation.)

Transactions do not commit in the order of their numbers, and a column may have had a third name. Where the server
says which columns commands have written by then (`said`), neither is relied upon without its word. What it says
alone proves nothing, because anybody may say it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice.protocol.messages import RelationColumn, RelationVersion

_HALF = 1 << 31


class _Life(Enum):
    """What is known of an attnum. `KEPT`: there before and today. `GONE`: there before. `BORN`: new, and
    last altered by a transaction with an earlier number than the rows' own. `OWN`: new, and last
    altered by theirs. `FRESH`: new, and last altered by a later one, or nobody says that it is earlier. `HIDDEN`: it
    existed before and was not published. `PASSING`: new, and dropped again.
    """

    KEPT = auto()
    GONE = auto()
    BORN = auto()
    OWN = auto()
    FRESH = auto()
    HIDDEN = auto()
    PASSING = auto()


_CERTAIN = (_Life.KEPT, _Life.BORN)
"""There when the rows came."""
_NEW = (_Life.OWN, _Life.FRESH)
_UNPROVEN = (_Life.OWN, _Life.FRESH, _Life.PASSING)
_RETYPED = (_Life.GONE, _Life.HIDDEN, _Life.OWN, _Life.FRESH)
"""May have had another type at the time of the rows, which nothing says any more."""
_SAME_BYTES = ({25, 142, 1043}, {1009, 1015}, {20, 23, 24, 26, 2202, 2204, 2205, 2206}, {650, 869}, {1114, 1184})
"""Types that the server changes into one another without writing the table anew."""
_FIRST_OF_USERS = 16384
"""Types with this number or a later one may be domains over any other."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    attnum: int
    life: _Life
    names: frozenset[str]
    types: frozenset[tuple[int, int]]
    had_any_type: bool = False
    had_any_name: bool = False

    def may_be(self, column: RelationColumn) -> bool:
        if self.life == _Life.PASSING or self.had_any_type or (column.type_oid, column.typmod) in self.types:
            return True
        return self.life in _RETYPED and any(_same_bytes(kind, column.type_oid) for kind, _ in self.types)

    def is_known(self, column: RelationColumn) -> bool:
        """Whether it can be said what older rows hold in it: nobody knows that of a new column that has
        another type today.
        """
        return self.life not in (_Life.HIDDEN, *_NEW) or (column.type_oid, column.typmod) in self.types

    def is_called(self, column: RelationColumn) -> bool:
        named = self.life == _Life.PASSING or self.had_any_name or column.name in self.names
        return named and self.may_be(column)


@dataclass(frozen=True, slots=True)
class Matched:
    """The attnum of each column on the wire, in order; those in `passing` the catalog does not have
    any more, nor did the version before.
    """

    attnums: tuple[int, ...]
    passing: frozenset[int] = frozenset()


def match(
    relation: RelationVersion,
    previous: TableSchema,
    facts: TableFacts | None,
    *,
    xid: int,
    said: AbstractSet[int] | None = None,
) -> Matched:
    """The columns of `relation`, which rows of transaction `xid` have. `said` are the attnums that commands of
    earlier transactions wrote since `previous`, None where nobody says it. Raises UnsupportedChange when
    it can be read in several ways, or in none.
    """
    candidates = _candidates(previous, facts, xid, said)
    count, found = _assignments(candidates, relation.columns, _Candidate.may_be)
    if count > 1:
        count, found = _assignments(candidates, relation.columns, _Candidate.is_called)
        if count == 1 and any(candidates[attnum].life in _UNPROVEN for attnum in found):
            count = 2
    if count == 1 and all(
        candidates[attnum].is_known(sent) for attnum, sent in zip(found, relation.columns, strict=True)
    ):
        return Matched(found, frozenset(attnum for attnum in found if candidates[attnum].life == _Life.PASSING))
    raise _doubt(relation, "in several ways" if count else "in no way")


def match_again(
    relation: RelationVersion,
    previous: TableSchema,
    facts: TableFacts | None,
    *,
    xid: int,
    said: AbstractSet[int] | None = None,
) -> Matched | None:
    """The same for a relation that looks like the version before and was announced again. None when
    it has the columns of that version. Raises UnsupportedChange when it may have others.
    """
    candidates = _candidates(previous, facts, xid, said)
    count, found = _assignments(candidates, relation.columns, _Candidate.is_called)
    if count == 0 or (count == 1 and found == tuple(column.attnum for column in previous.sent)):
        return None
    if count == 1 and all(candidates[attnum].life in _CERTAIN for attnum in found):
        return Matched(found)
    raise _doubt(relation, "in several ways")


def _doubt(relation: RelationVersion, how: str) -> UnsupportedChange:
    names = ", ".join(column.name for column in relation.columns[:20])
    return UnsupportedChange(
        f"its columns changed more than once before they could be read, and what the stream calls {names} can "
        f"be matched with them {how}"
    )


def _precedes(xid: int, other: int) -> bool:
    """Whether transaction `xid` has an earlier number than `other`. Numbers wrap around."""
    return 0 < (other - xid) % (2 * _HALF) < _HALF


def _candidates(
    previous: TableSchema, facts: TableFacts | None, xid: int, said: AbstractSet[int] | None
) -> dict[int, _Candidate]:
    # Of a partition commands say what they do to the table above it.
    said = None if facts is None or facts.is_partition else said
    now = {column.attnum: column for column in facts.sent_columns} if facts else {}
    alive = {column.attnum for column in facts.columns} if facts else set()
    newest = facts.attributes if facts else 0
    # Of a table that was rewritten, other than those with new columns whose older rows hold a constant, no
    # look at the catalog keeps quiet.
    rewritten = facts is None or facts.relkind == "p"
    rewritten = rewritten or any(now[attnum].missing is not None for attnum in now if attnum > previous.attributes)
    renamed = said or ()
    found = {
        column.attnum: replace(
            _known(column, now.get(column.attnum), xid, rewritten=rewritten), had_any_name=column.attnum in renamed
        )
        for column in previous.sent
    }
    for attnum, column in now.items():
        if attnum not in found:
            life = _Life.HIDDEN if attnum <= previous.attributes else _life_of_new(column, xid, said)
            names, types = frozenset([column.name]), frozenset([_type(column)])
            found[attnum] = _Candidate(attnum, life, names, types, had_any_name=attnum in renamed)
    for attnum in range(previous.attributes + 1, newest + 1):
        if attnum not in alive:
            found[attnum] = _Candidate(attnum, _Life.PASSING, frozenset(), frozenset())
    return dict(sorted(found.items()))


def _life_of_new(column: ColumnFacts, xid: int, said: AbstractSet[int] | None) -> _Life:
    if column.xmin == xid:
        return _Life.OWN
    is_there = _precedes(column.xmin, xid) and (said is None or column.attnum in said)
    return _Life.BORN if is_there else _Life.FRESH


def _known(before: ColumnSchema, now: ColumnFacts | None, xid: int, *, rewritten: bool) -> _Candidate:
    if now is None:
        names, types = frozenset([before.name]), frozenset([_type(before)])
        return _Candidate(before.attnum, _Life.GONE, names, types, had_any_type=rewritten)
    if _precedes(now.xmin, xid):
        return _Candidate(before.attnum, _Life.KEPT, frozenset([now.name]), frozenset([_type(now)]))
    return _Candidate(
        before.attnum, _Life.KEPT, frozenset([before.name, now.name]), frozenset([_type(before), _type(now)])
    )


def _same_bytes(one: int, other: int) -> bool:
    return one == other or max(one, other) >= _FIRST_OF_USERS or any({one, other} <= kinds for kinds in _SAME_BYTES)


def _type(column: ColumnSchema | ColumnFacts) -> tuple[int, int]:
    return column.type_oid, column.typmod


@dataclass(frozen=True, slots=True)
class _State:
    """How far an assignment is: `taken` columns of the wire. A column that was made later cannot be
    there when an earlier one that still is was `passed_new` over. Of several columns that came and
    went without another one between them the first ones are taken.
    """

    taken: int = 0
    passed_new: bool = False
    passed_passing: bool = False

    def next(self, candidate: _Candidate, columns: Sequence[RelationColumn], fits: "_Fits") -> "Iterator[_State]":
        life = candidate.life
        if life not in _CERTAIN:
            yield _State(
                self.taken,
                self.passed_new or life in _NEW,
                self.passed_passing or life == _Life.PASSING,
            )
        if self.taken == len(columns) or not fits(candidate, columns[self.taken]):
            return
        if (life in _NEW and self.passed_new) or (life == _Life.PASSING and self.passed_passing):
            return
        yield _State(self.taken + 1, self.passed_new, life == _Life.PASSING and self.passed_passing)


_Fits = Callable[[_Candidate, RelationColumn], bool]
_Path = tuple[int, "_Path | None"]


def _assignments(
    candidates: Mapping[int, _Candidate], columns: Sequence[RelationColumn], fits: _Fits
) -> tuple[int, tuple[int, ...]]:
    """How many assignments there are, and one of them. `candidates` come by attnum, ascending."""
    states: dict[_State, tuple[int, _Path | None]] = {_State(): (1, None)}
    for attnum, candidate in candidates.items():
        reached: dict[_State, tuple[int, _Path | None]] = {}
        for state, (count, path) in states.items():
            for after in state.next(candidate, columns, fits):
                more, _ = reached.get(after, (0, None))
                reached[after] = (more + count, path if after.taken == state.taken else (attnum, path))
        states = reached
    whole = [(count, path) for state, (count, path) in states.items() if state.taken == len(columns)]
    chosen: list[int] = []
    path = whole[0][1] if whole else None
    while path is not None:
        attnum, path = path
        chosen.append(attnum)
    return sum(count for count, _ in whole), tuple(reversed(chosen))
