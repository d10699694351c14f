"""Ends the service of parties whose rights have expired or were revoked, in the loop of a node."""

from collections.abc import Callable

from penstock.base.errors import PenstockError, RevokedError, TokenExpiredError
from penstock.net.live.admission import watch_rights
from penstock.security.core.access_control import AccessControl, P


async def watch_expiry(access: AccessControl[P], end: Callable[[P, PenstockError], None]) -> None:
    """Call `end` for each party whose rights have expired, until the task is cancelled."""

    def check(now_ns: int) -> None:
        for each in access.expired(now_ns):
            end(each, TokenExpiredError("the token has expired", hint="renew it in time"))

    await watch_rights(check)


def revoke(
    access: AccessControl[P], subscription_id: str, reason: str, end: Callable[[P, PenstockError], None]
) -> None:
    """Call `end` for each party whose rights come from a subscription that the administration server has revoked."""
    for each in access.bearers(subscription_id):
        end(each, RevokedError(f"the subscription was revoked: {reason}"))
