"""Ends the service of parties whose rights have ended, in the loop of a node."""

import asyncio
import time
from collections.abc import Callable

from penstock.base.errors import PenstockError, RevokedError, TokenExpiredError
from penstock.security.core.access_control import AccessControl, P

EXPIRY_CHECK_SECONDS = 0.5


async def watch_expiry(access: AccessControl[P], end: Callable[[P, PenstockError], None]) -> None:
    """Call `end` for each party whose rights have expired, until the task is cancelled."""
    while True:
        for each in access.expired(time.time_ns()):
            end(each, TokenExpiredError("the token has expired", hint="renew it in time"))
        await asyncio.sleep(EXPIRY_CHECK_SECONDS)


def revoke(
    access: AccessControl[P], subscription_id: str, reason: str, end: Callable[[P, PenstockError], None]
) -> None:
    """Call `end` for each party whose rights come from a subscription that the administration server has revoked."""
    for each in access.bearers(subscription_id):
        end(each, RevokedError(f"the subscription was revoked: {reason}"))
