"""Ports for servers that tests start: what one caller was given, nobody else is given or takes by chance."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools.local import ports

ASK = """
import random, sys
from tools.local import ports
random.SystemRandom = lambda: type("Fixed", (), {"choice": lambda self, ports: int(sys.argv[1])})()
try:
    print(ports.free_port())
except OSError:
    print("refused")
"""


def test_a_port_given_to_one_process_is_not_given_to_another_before_anything_listens_on_it() -> None:
    port = ports.free_port()
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(port)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == "refused", asked.stderr
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("kernel", [(32_768, 60_999), (1_024, 60_999), (15_000, 65_535)])
def test_a_port_is_none_that_the_kernel_gives_to_a_connection(kernel: tuple[int, int]) -> None:
    first, last = kernel
    found = ports.candidates(kernel)
    assert len(found) >= 1_000
    assert not [port for port in found if first <= port <= last]


def test_where_the_kernel_gives_nearly_all_ports_to_connections_there_are_ports_still() -> None:
    assert len(ports.candidates((1_024, 65_000))) >= 1_000


@pytest.mark.skipif(
    not Path("/proc/sys/net").exists(), reason="only Linux tells from which range connections take ports"
)
def test_the_range_of_this_kernel_is_the_one_that_is_avoided() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert ports.candidates() == ports.candidates((first, last))
    assert {ports.free_port() for _ in range(50)} <= set(ports.candidates((first, last)))
