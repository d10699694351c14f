"""A pair of message routers with clients, crashes, partitions and operators. Read plant.py first."""
