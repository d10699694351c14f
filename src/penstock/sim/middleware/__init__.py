"""Publishers and receivers on a lossy network, with a stranger. Read plant.py first."""
