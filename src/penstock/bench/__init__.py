"""Benchmarks, each compared with a physical limit or a peer in the same run: `penstock bench NAME --json`.

A bench is a module with a `run()` that yields Results; harness.py has the common parts, catalogue.py lists the benches.
"""
