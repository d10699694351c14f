"""A ticker plant, multiplexers and consumers of all classes. Read plant.py first."""
