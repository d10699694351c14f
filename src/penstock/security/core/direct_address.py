"""Addresses for direct messages to one application, bound to the client of its token.

An address has 64 bits: the first 48 are a hash of the client's name, the last 16 are a number that tells the
applications of one client apart. So a filter module sees by the token whether an address is the bearer's own.
"""

from hashlib import sha256

from penstock.base.errors import LocalProtocolError

NUMBER_BITS = 16
NUMBERS = 1 << NUMBER_BITS
_LABEL = b"penstock direct address\0"


def direct_address(client: str, number: int) -> int:
    """The address of this application, 0 to 65,535, of the client with this name."""
    if not 0 <= number < NUMBERS:
        raise LocalProtocolError(f"an application's number is {number}", hint=f"from 0 to {NUMBERS - 1}")
    prefix = int.from_bytes(sha256(_LABEL + client.encode()).digest()[:6], "big")
    return (prefix << NUMBER_BITS | number) or 1  # no address is 0


def is_address_of(address: int, client: str) -> bool:
    return address == direct_address(client, address % NUMBERS)
