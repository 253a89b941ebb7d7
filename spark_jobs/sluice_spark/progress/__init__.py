"""How far every table is: which window comes next, and what is reported below `apply/`."""
