"""Which endpoints and messages the other router of a pair has copies of."""

from penstock.assured.core.router._tables import Tables

def set_absent(tables: Tables, numbers: list[int]) -> None: ...
