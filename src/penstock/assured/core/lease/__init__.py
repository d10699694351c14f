"""The lease that decides which router of a pair is active. Read protocol.py first, then voter.py and keeper.py."""
