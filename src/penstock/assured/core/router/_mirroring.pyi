"""Endpoints and messages of which the other router of a pair has copies."""

from penstock.assured.core.router._tables import Tables

def set_absent(tables: Tables, numbers: list[int]) -> None: ...
