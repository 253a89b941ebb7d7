"""What an endpoint on this machine answers."""

import http.client
import urllib.request
from contextlib import closing


def ask(
    address: str, path: str, method: str = "GET", *, authorization: str = "", timeout: float = 30
) -> tuple[int, str]:
    """Status and content."""
    with closing(http.client.HTTPConnection(address, timeout=timeout)) as connection:
        connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
