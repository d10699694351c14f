"""Benches of filter modules; `bench.run` runs all of them."""
