"""The filter module beside each host: it lets through what the host's applications want, and accounts for the rest.

It publishes nothing and stores nothing beyond what repairs need. control.py has what applications say to it.
"""

from penstock.filter.control import PORT_DEFAULT, PROTOCOL

__all__ = ["PORT_DEFAULT", "PROTOCOL"]
