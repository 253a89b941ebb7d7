"""`python -m sluice_spark`, and the program that spark-submit runs."""

from sluice import streams
from sluice_spark.cli import main

streams.prepare()
main()
