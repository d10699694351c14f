"""Runs plants: plant.toml describes the nodes, each of which runs in its own process."""
