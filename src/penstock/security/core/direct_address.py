"""Addresses for direct messages to one application, bound to the client of its token.

An address has 64 bits: the first 48 are a hash of the client's name, the last 16 are the number of an application of
this client. A filter module can therefore check an address against the client name in the token.
"""

from hashlib import sha256

from penstock.base.errors import LocalProtocolError

NUMBER_BITS = 16
NUMBERS = 1 << NUMBER_BITS
_LABEL = b"penstock direct address\0"


def direct_address(client: str, number: int) -> int:
    """Return the address of an application, numbered 0 to 65,535, of this client."""
    if not 0 <= number < NUMBERS:
        raise LocalProtocolError(f"invalid application number {number}", hint=f"choose 0 to {NUMBERS - 1}")
    prefix = int.from_bytes(sha256(_LABEL + client.encode()).digest()[:6], "big")
    return (prefix << NUMBER_BITS | number) or 1  # address 0 is reserved


def is_address_of(address: int, client: str) -> bool:
    return address == direct_address(client, address % NUMBERS)
