"""For compiled code only."""
