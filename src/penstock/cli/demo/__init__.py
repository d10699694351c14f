"""`penstock demo`."""
