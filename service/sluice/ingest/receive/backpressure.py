"""How long the socket was left unread, and whose fault it was.

Belongs to the event loop. Must not hold anything up: it is informed.
"""

import time
from collections.abc import Callable


class Backpressure:
    """Seconds by cause: `decoder` (the decoder thread computes) or `upload` (it waits for the
    store).
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.seconds = {"decoder": 0.0, "upload": 0.0}
        self._monotonic = monotonic
        self._since: float | None = None
        self._began = 0.0

    @property
    def active(self) -> bool:
        return self._since is not None

    @property
    def lasting(self) -> float:
        """For how many seconds the socket has been left unread, 0 while it is read."""
        return self._monotonic() - self._began if self.active else 0.0

    def begin(self) -> None:
        """From now on the socket is left unread."""
        self._since = self._began = self._monotonic()

    def account(self, cause: str) -> None:
        """What has passed since `begin` or the last account was for `cause`."""
        if self._since is not None:
            now = self._monotonic()
            self.seconds[cause] += now - self._since
            self._since = now

    def end(self, cause: str) -> None:
        """The socket is read again."""
        self.account(cause)
        self._since = None
