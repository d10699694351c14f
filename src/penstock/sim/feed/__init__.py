"""A feed: an exchange, adapters with backups, subscribers. Read plant.py first."""
