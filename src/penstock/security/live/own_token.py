"""A node's own token, with which it logs in to the node above."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import NotFoundError, PenstockError
from penstock.base.log import logger
from penstock.security.core.access import AdminAccess
from penstock.security.core.brokering import Brokered
from penstock.security.live.client import AdminClient

RENEW_AFTER = 0.5
"""Share of a token's lifetime after which it is renewed."""

RETRY_SECONDS = 0.5
TOKEN_SECONDS = 5.0
"""Maximum time that a node waits for tokens at its start; without an administration server, the node starts then."""

log = logger("security.own_token")


class OwnToken:
    """A subscription at the administration server, kept while the node runs."""

    def __init__(self, access: AdminAccess, topics: Sequence[str]) -> None:
        self._access = access
        self._topics = tuple(topics)
        self._is_there = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until keep() has passed on the first token, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_there.wait(), seconds)

    async def keep(self, use: Callable[[str], Awaitable[None]]) -> None:
        """Pass a valid token to `use`, and every renewed one, until cancelled. While no server answers, the last
        token is valid until it expires."""
        client = AdminClient.connect(self._access.url, self._access.credentials)
        subscription_id = ""
        try:
            while True:
                try:
                    brokered = await asyncio.to_thread(self._brokered, client, subscription_id)
                    subscription_id = brokered.subscription_id
                except PenstockError as error:
                    log.warning("no_token", code=error.code, error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                with contextlib.suppress(PenstockError):  # the link reconnects with the new token
                    await use(brokered.token)
                self._is_there.set()
                left_s = (brokered.expires_ns - time.time_ns()) / NS_PER_SECOND
                await asyncio.sleep(max(left_s * RENEW_AFTER, RETRY_SECONDS))
        finally:
            client.close()

    def _brokered(self, client: AdminClient, subscription_id: str) -> Brokered:
        if subscription_id:
            with contextlib.suppress(NotFoundError):
                return client.renew(subscription_id)
        return client.subscribe(self._topics)
