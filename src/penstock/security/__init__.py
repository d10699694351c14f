"""The documents that the stream administration server issues, and their checks: credentials, policy, tokens, stream
keys.

The administration server itself is penstock.admin. core/ does no I/O: read policy.py first, then token.py and
entitlement.py; proof.py describes the login of a client, sealing.py the format of sealed payloads. live/ has the
client of the server (penstock.security.live.client.AdminClient; its documents are in core/brokering.py) and the state
that nodes keep current with it.
"""

from penstock.security.core.access import AdminAccess
from penstock.security.core.brokering import AdapterRegistration
from penstock.security.core.credentials import Credentials
from penstock.security.core.entitlement import Entitlement
from penstock.security.core.keys import PrivateKey, PublicKey
from penstock.security.core.policy import Policy
from penstock.security.core.sealing import Opener, Sealer, StreamKey, StreamKeyRing
from penstock.security.core.token import Grant, Token, TokenSigner, TokenVerifier

__all__ = [
    "AdapterRegistration",
    "AdminAccess",
    "Credentials",
    "Entitlement",
    "Grant",
    "Opener",
    "Policy",
    "PrivateKey",
    "PublicKey",
    "Sealer",
    "StreamKey",
    "StreamKeyRing",
    "Token",
    "TokenSigner",
    "TokenVerifier",
]
