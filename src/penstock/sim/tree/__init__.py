"""A distribution tree: root, standby, agents, subscribers, publishers. Read plant.py first."""
