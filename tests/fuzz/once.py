"""One target under atheris, in a process that libFuzzer owns: `python -m tests.fuzz.once TARGET
CORPUS... [-flag=value ...]`.
"""

import sys

try:
    import atheris
except ImportError:
    sys.exit(
        "make fuzz needs atheris, which has no wheel for Python "
        f"{sys.version_info.major}.{sys.version_info.minor} on this machine"
    )

with atheris.instrument_imports(
    include=["sluice.protocol", "sluice.ingest.assemble", "sluice.contract", "sluice.ingest.commit"]
):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
