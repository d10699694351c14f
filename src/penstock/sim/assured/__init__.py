"""One message router on a disk that fails, with its clients. Read plant.py first."""
