"""Benches of failures: how long clients receive nothing; `bench.run` runs all of them."""
