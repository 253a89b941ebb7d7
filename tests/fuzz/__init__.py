"""Everything that reads bytes which others wrote, under a fuzzer: `make fuzz`. The same targets run
over drawn input in tests/unit.
"""
