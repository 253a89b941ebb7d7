"""Runs on executors that may have no Sluice: it is sent there as code, so it refers to nothing of ours
outside of its functions.
"""


def packages_or_error(_: int) -> tuple[dict[str, str], str]:
    """What `packages` says there, and which import fails."""
    try:
        from sluice_spark.distributed import distribution, packages  # noqa: F401 - it may not be there
    except ImportError as error:
        return {}, str(error)
    return dict(packages.packages()), ""
