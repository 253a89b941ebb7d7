"""Text, and every type that is kept as the server's own text. (PostgreSQL: Character Types.)"""

import pyarrow as pa

from service.spool.types.reading import Reading
from service.spool.views import Texts


def read_text(texts: Texts, arrow_type: pa.DataType) -> Reading:  # noqa: ARG001 - one form for every family
    return Reading(texts.string())
