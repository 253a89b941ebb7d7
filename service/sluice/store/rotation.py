"""Keys of an S3 store that change while a process runs.

Invariant: the store uses the keys that hold at most a few seconds ago, all of them of one reading.
(AWS: access keys, temporary security credentials.)
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

KEYS = ("access_key_id", "secret_access_key", "session_token", "token")
"""The options that are credentials, without `aws_`. obstore knows the session's token by two names."""
_LOOK = timedelta(seconds=10)
"""Between two readings, and only while requests are made."""


def is_key(option: str) -> bool:
    """Whether a running process takes this option of a store anew."""
    return _plain(option) in KEYS


class RotatingKeys:
    """obstore's credential provider for S3. `reread` returns the options as they are now, and does
    not raise.
    """

    refresh_threshold = timedelta(0)
    """How long before its end a reading is replaced."""

    def __init__(self, reread: Callable[[], Mapping[str, str]]) -> None:
        self._reread = reread

    def __call__(self) -> dict[str, Any]:
        found = {_plain(name): value for name, value in self._reread().items()}
        return {
            "access_key_id": found.get("access_key_id", ""),
            "secret_access_key": found.get("secret_access_key", ""),
            "token": found.get("session_token") or found.get("token"),
            "expires_at": datetime.now(UTC) + _LOOK,
        }


def _plain(option: str) -> str:
    return option.lower().removeprefix("aws_")
