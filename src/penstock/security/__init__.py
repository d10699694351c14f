"""What the stream administration server issues and everybody else checks: credentials, policy, tokens, stream keys.

It decides nothing about who is who (that is penstock.admin) and moves no data. Read policy.py first, then token.py and
entitlement.py; proof.py says how a client logs in, sealing.py what the bytes of a sealed stream are. The way to the
server is penstock.security.client.AdminClient, its documents are in brokering.py.
"""

from penstock.security.credentials import Credentials
from penstock.security.entitlement import Entitlement
from penstock.security.keys import PrivateKey, PublicKey
from penstock.security.policy import Policy
from penstock.security.sealing import Opener, Sealer, StreamKey, StreamKeyRing
from penstock.security.token import Grant, Token, TokenSigner, TokenVerifier

__all__ = [
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
