"""Two routers and a witness that vote for a lease, on clocks that differ. Read plant.py first."""
