"""Text, and every type that is kept as the server's own text. (PostgreSQL: Character Types.)"""

import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Texts


def read_text(texts: Texts, arrow_type: pa.DataType) -> Reading:  # noqa: ARG001 - one form for every family
    return Reading(texts.string())
