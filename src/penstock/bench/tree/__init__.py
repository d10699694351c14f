"""Benches of distribution trees; `bench.run` runs all of them."""
