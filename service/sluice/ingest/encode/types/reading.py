"""What a reader of one family gives back."""

from dataclasses import dataclass

import pyarrow as pa

from sluice.ingest.encode.views import Mask, Texts


@dataclass(frozen=True, slots=True)
class Reading:
    """A column's typed values. `special` marks the rows whose text the type cannot hold, None when
    there are none.

    `texts` has those texts where the column was not read from text. A row is null in `array` if and
    only if it was not present or is special.
    """

    array: pa.Array
    special: Mask | None = None
    texts: Texts | None = None
