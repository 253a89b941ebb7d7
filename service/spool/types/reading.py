"""What a reader of one family gives back."""

from dataclasses import dataclass

import pyarrow as pa

from service.spool.views import Mask


@dataclass(frozen=True, slots=True)
class Reading:
    """A column's typed values. `special` marks the rows whose text the type cannot hold, None when there are none.

    A row is null in `array` if and only if it was not present or is special.
    """

    array: pa.Array
    special: Mask | None = None
