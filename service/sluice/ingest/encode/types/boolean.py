"""boolean: `t` or `f`. (PostgreSQL: Boolean Type.)"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Texts

_TRUE, _FALSE = b"tf"


def read_boolean(texts: Texts, arrow_type: pa.DataType) -> Reading:
    first = texts.byte(0)
    true = first == _TRUE
    known = (true | (first == _FALSE)) & (texts.length == 1)
    if not np.all(known | ~texts.present):
        raise texts.unreadable("boolean")
    return Reading(pa.array(true, arrow_type, mask=None if texts.complete else ~texts.present))
