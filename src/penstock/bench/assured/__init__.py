"""Benches of message routers; `bench.run` runs all of them."""
