"""Benches of the distribution engine; `bench.run` runs all of them."""
