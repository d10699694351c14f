"""Benches of failures: the time in which clients receive nothing; `bench.run` runs all of them."""
