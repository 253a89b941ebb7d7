"""Benchmarks with their references in the same run: `make bench` or `make bench ONLY=P1`. Nothing
here is a test; the work of each round is verified.
"""
