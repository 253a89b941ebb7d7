"""TCP ports on loopback for servers that must know their port before they listen."""

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_HELD: list[socket.socket] = []
"""UDP sockets at the numbers of the ports given: a port is given to one process as long as it lives."""


def free_port() -> int:
    """A TCP port on loopback that nothing listens on and that no other caller is given.

    It lies below the range from which the kernel takes ports for connections: one from that range
    may be the near end of a connection by the time a server listens on it. Raises OSError if there
    is none.
    """
    choice = random.SystemRandom()
    for _ in range(1_000):
        port = choice.randrange(_LOWEST, _first_of_kernel())
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            held.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                stack.pop_all()
                _HELD.append(held)
                return port
    raise OSError("no free port on 127.0.0.1 was found in 1,000 attempts")


def _first_of_kernel() -> int:
    """The first port of the kernel's range (ip(7): ip_local_port_range), or where it usually begins
    where it cannot be read or leaves no room.
    """
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
    return first if first > 2 * _LOWEST else 32_768
