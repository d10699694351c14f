"""What the stream administration server issues and everybody else checks: credentials, policy, tokens, stream keys.

It decides nothing about who is who (that is penstock.admin) and moves no data. core/ does no I/O: read policy.py first,
then token.py and entitlement.py; proof.py says how a client logs in, sealing.py what the bytes of a sealed stream are.
live/ is the way to the server (penstock.security.live.client.AdminClient; its documents are in core/brokering.py) and
what nodes keep up to date by it.
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
