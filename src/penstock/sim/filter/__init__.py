"""Publishers, filter modules and their applications. Read plant.py first."""
