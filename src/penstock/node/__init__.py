"""One file describes a plant: plant.toml into running processes."""
