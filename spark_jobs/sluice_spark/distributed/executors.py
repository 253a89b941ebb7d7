"""Why no task of ours runs on the executors, where Spark says only that Python failed.

Owns a probe that needs nothing of Sluice on the other side, and that says only names and versions.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException

from sluice.errors import ApplyError
from sluice_spark.distributed import packages, probe

_SECONDS = 30.0
"""Executors that are all gone would keep the probe waiting."""
_CANCELLED = "SPARK_JOB_CANCELLED"
_NO_PYTHON = "Cannot run program"
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"
_CHOSEN = "spark.pyspark.python in apply.conf or PYSPARK_PYTHON says which, else it is python3"

cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call, unused-ignore]


@contextmanager
def explained(context: SparkContext) -> Iterator[None]:
    """An error of Spark's inside the block becomes an ApplyError that names what executors lack, if that
    is why.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else ""
        if str(context.master).startswith("local") or condition == _CANCELLED:
            raise
        if lacking := _lacking(context):
            raise ApplyError(lacking, hint=packages.HINT) from None
        raise


def _lacking(context: SparkContext) -> str:
    tag, tasks = f"probe-{uuid.uuid4().hex}", max(1, int(context.defaultParallelism))
    timer = threading.Timer(_SECONDS, context.cancelJobsWithTag, [tag])
    context.addJobTag(tag)
    timer.start()
    try:
        found = context.parallelize(range(tasks), tasks).map(probe.packages_or_error).collect()
    except (PySparkException, Py4JJavaError) as error:
        return _no_python(str(error))
    finally:
        timer.cancel()
        context.removeJobTag(tag)
    for theirs, missing in found:
        if missing:
            return f"Spark's executors cannot load Sluice: {missing}"
        if other := packages.difference(theirs, packages.packages()):
            return f"Spark's executors have {other}"
    return ""


def _no_python(said: str) -> str:
    """`said` is Spark's message about the probe, which saw no row."""
    if _OTHER_PYTHON in said:
        return f"Spark's executors run another version of Python than the driver: {_CHOSEN}"
    return f"Spark's executors cannot run their Python: {_CHOSEN}" if _NO_PYTHON in said else ""
