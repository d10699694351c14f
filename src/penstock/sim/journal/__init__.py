"""A journal on a disk that fails. Read plant.py first."""
