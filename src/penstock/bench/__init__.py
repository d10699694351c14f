"""Measurements, each beside a physical limit or a peer in the same run: `penstock bench NAME --json`.

A bench is a module with a `run()` that yields Results; harness.py has what they share, catalogue.py lists them.
"""
