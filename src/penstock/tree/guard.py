"""What protects links between the parties of a tree."""

from penstock.net.guard import Guard

__all__ = ["Guard"]
