"""`python -m spark_jobs`, and the program that spark-submit runs."""

from spark_jobs.cli import main

main()
