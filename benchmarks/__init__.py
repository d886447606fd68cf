"""Benchmarks beside the peer, one module each, run by `make bench-NAME`. They print tables and assert
nothing.
"""
