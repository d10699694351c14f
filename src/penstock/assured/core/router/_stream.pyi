"""The stream of what happens, for the other router; compiled code only."""
