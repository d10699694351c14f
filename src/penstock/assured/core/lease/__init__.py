"""The lease that decides which router of a pair is active. Read voting.py first, then witness.py and lease.py."""
