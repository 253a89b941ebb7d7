"""boolean: `t` or `f`, in binary form 1 or 0. (PostgreSQL: Boolean Type.)"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.binary import absent, fixed, unreadable
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


def read_boolean_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    values = fixed(fields, "boolean", "u1").astype(np.uint8)
    if np.any(fields.present & (values > 1)):
        raise unreadable(fields, "boolean")
    return Reading(pa.array(values == 1, arrow_type, mask=absent(fields)))
