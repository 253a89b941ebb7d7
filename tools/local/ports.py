"""TCP ports on loopback for servers that must know their port before they listen."""

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST, _ENOUGH = 10_000, 65_535, 1_000
_HELD: list[socket.socket] = []
"""UDP sockets at the numbers of the ports given: a port is given to one process as long as it lives."""


def free_port() -> int:
    """A TCP port on loopback that nothing listens on and that no other caller is given.

    It lies outside the range from which the kernel takes ports for connections, where that leaves enough: one from
    that range may be the near end of a connection by the time a server listens on it. Raises OSError if there is none.
    """
    choice, ports = random.SystemRandom(), candidates()
    for _ in range(1_000):
        port = choice.choice(ports)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            held.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                stack.pop_all()
                _HELD.append(held)
                return port
    raise OSError("no free port on 127.0.0.1 was found in 1,000 attempts")


def candidates(kernel: tuple[int, int] | None = None) -> Sequence[int]:
    """The ports that `free_port` chooses from; `kernel` are the first and the last of the kernel's range."""
    first, last = kernel or _of_kernel()
    outside = [*range(_LOWEST, first), *range(last + 1, _HIGHEST + 1)]
    return outside if len(outside) >= _ENOUGH else range(_LOWEST, _HIGHEST + 1)


def _of_kernel() -> tuple[int, int]:
    """ip(7): ip_local_port_range, or what it usually is where it cannot be read."""
    try:
        first, last = map(int, _RANGE.read_text().split())
    except (OSError, ValueError):
        return 32_768, 60_999
    return first, last
