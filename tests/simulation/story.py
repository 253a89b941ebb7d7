"""A history that found something: as few events as possible, and as text."""

from collections.abc import Callable, Iterator, Sequence

from tests.simulation.applier import Finding
from tests.simulation.steps import Crash
from tests.simulation.world import Event, World


def run(seed: int, steps: int) -> tuple[World, BaseException | None]:
    """The history of `seed`, and what it found."""
    world = World(seed)
    try:
        world.generate(steps)
        world.heal()
    except (Exception, Crash) as error:  # noqa: BLE001 - anything that the product raises here is a finding
        return world, error
    finally:
        world.close()
    return world, None


def again(seed: int, events: Sequence[Event]) -> tuple[World, BaseException | None]:
    """The history of `seed` with these events instead of its own."""
    world = World(seed)
    try:
        world.replay(list(events))
        world.heal()
    except (Exception, Crash) as error:  # noqa: BLE001
        return world, error
    finally:
        world.close()
    return world, None


def shrunk(seed: int, events: Sequence[Event]) -> list[Event]:
    """Fewer of `events` that find the same kind of thing."""
    kind = _kind(again(seed, events)[1])
    kept = list(events)
    if kind is None:
        return kept

    def fails(candidate: Sequence[Event]) -> bool:
        return _kind(again(seed, candidate)[1]) == kind

    size = max(1, len(kept) // 2)
    while True:
        kept, fewer = _without(kept, size, fails)
        if size == 1 and not fewer:
            break
        size = max(1, size // 2)
    return _without_inner(kept, fails)


def _without(kept: list[Event], size: int, fails: Callable[[Sequence[Event]], bool]) -> tuple[list[Event], bool]:
    start, fewer = 0, False
    while start < len(kept):
        candidate = kept[:start] + kept[start + size :]
        if fails(candidate):
            kept, fewer = candidate, True
        else:
            start += size
    return kept, fewer


def _without_inner(kept: list[Event], fails: Callable[[Sequence[Event]], bool]) -> list[Event]:
    for place, event in enumerate(kept):
        for one in list(event.inner):
            candidate = list(kept)
            candidate[place] = Event(
                event.name, event.number, [each for each in candidate[place].inner if each is not one]
            )
            if fails(candidate):
                kept = candidate
    return kept


def _kind(error: BaseException | None) -> tuple[str, str] | None:
    """What tells findings apart, without numbers and names."""
    if error is None:
        return None
    words = "".join(letter for letter in str(error) if letter.isalpha() or letter == " ").split()
    return type(error).__name__, " ".join(words[2:8]) if isinstance(error, Finding) else ""


def lines(world: World, events: Sequence[Event], error: BaseException | None) -> Iterator[str]:
    """The history, line by line."""
    yield (
        f"seed {world.seed}: streaming {world.streaming}, two-phase {world.two_phase}, DDL signal {world.signals}, "
        f"{world.limits.max_rows} rows a unit, {world.limits.body_bytes} bytes of an open transaction in memory, "
        f"{world.chunk_blocks} blocks a chunk, windows of {world.window_bytes} bytes"
    )
    for number, event in enumerate(events, 1):
        yield f"{number:4}. {event.name}: {event.said}"
        for hook, inner in event.inner:
            yield f"        at its {hook}. place in between, {inner.name}: {inner.said}"
    if error is not None:
        yield f"      {type(error).__name__}: {error}"
