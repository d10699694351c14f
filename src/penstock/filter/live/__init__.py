"""A running filter module: its data thread, its control connections, its process."""
