"""Benches of the pipeline on Spark; `bench.run` runs all of them."""
