"""The program that the Spark operator submits: `sluice` as on any command line, in a driver that
Spark has already started.
"""

from sluice.cli import main

main()
