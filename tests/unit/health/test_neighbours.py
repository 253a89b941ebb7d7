"""What other pipelines say of themselves is asked over real HTTP, believed as a word, and bounded."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.health.facts import Facts
from sluice.health.neighbours import SILENT, STRANGE, Neighbours
from sluice.health.verdict import Verdict, judge
from tests.support.answers import serving


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """A server that gives one answer, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def states(**addresses: str) -> dict[str, str]:
    neighbours = Neighbours(addresses)
    assert {one.state for one in neighbours.newest} == {""}
    neighbours.poll()
    return {one.name: one.state for one in neighbours.newest}


def test_a_pipeline_is_shown_with_its_state_and_one_that_is_gone_with_its_silence() -> None:
    verdict: Verdict = judge(Facts(now=0.0))
    with serving("billing", verdict=lambda: verdict) as (there, _):
        pass
    with serving("billing", verdict=lambda: verdict) as (here, _):
        found = states(billing=f"http://{here}", gone=f"http://{there}")
    assert found == {"billing": "unknown", "gone": SILENT}


def test_nothing_but_the_name_of_a_state_is_believed() -> None:
    markup = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n<script>1</script>\n\n"
    elsewhere = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with saying(markup) as one, saying(elsewhere) as two, saying(b"SSH-2.0-x\r\n") as three:
        assert states(one=one, two=two, three=three) == {"one": STRANGE, "two": STRANGE, "three": SILENT}
