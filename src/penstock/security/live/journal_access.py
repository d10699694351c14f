"""Access to journals that are served over TCP: tokens of the administration server, on both sides.

A journal contains everything that was captured, on all topics. Reading a journal therefore needs its own grant: to
receive the topic `journal.NAME` without a delay, because the service serves records as soon as they are written.
"""

import contextlib
import threading
import time
from typing import Self

from penstock.base.errors import ConfigurationError, NotEntitledError, NotFoundError, RevokedError
from penstock.security.core.access import AdminAccess
from penstock.security.core.entitlement import Entitlement
from penstock.security.core.token import token_needed
from penstock.security.live.client import AdminClient
from penstock.security.live.token_watch import TokenWatch
from penstock.topics.topic import check_topic

READY_SECONDS = 5.0


def journal_topic(name: str) -> str:
    """The topic whose grant allows reading the journal of this name."""
    topic = f"journal.{name}"
    check_topic(topic)
    return topic


def admin_access(url: str | None, credentials: str | None) -> AdminAccess | None:
    """Return the access that the options --connect and --credentials describe; None without them."""
    if bool(url) != bool(credentials):
        raise ConfigurationError("--connect and --credentials require each other", hint="give both or neither")
    return AdminAccess(url=url, credentials=credentials) if url and credentials else None


class JournalAccess:
    """Checks the tokens of a journal's followers: `check_token` of a JournalServer. Its client needs the role
    `filter`, to check tokens and to receive revocations."""

    def __init__(self, access: AdminAccess, name: str) -> None:
        self._topic = journal_topic(name)
        client = AdminClient.connect(access.url, access.credentials)
        self._tokens = TokenWatch(client, None, lambda revoked: None)  # the server asks again, periodically

    def __enter__(self) -> Self:
        """Wait until tokens can be checked, at most READY_SECONDS; until then all tokens are refused."""
        self._tokens.start()
        self._tokens.wait(READY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.stop()

    def check(self, token: str) -> None:
        if not token:
            raise token_needed()
        delay_s = Entitlement(self._tokens.gate.verify(token, time.time_ns()).grants).receive_delay_s(self._topic)
        if delay_s is None:
            raise NotEntitledError(
                f"the token has no grant to receive {self._topic!r}", hint="add a rule for this topic to the policy"
            )
        if delay_s:
            raise NotEntitledError(
                f"the grant for {self._topic!r} has a delay of {delay_s} s, but the service serves live records",
                hint="remove the delay from the rule",
            )


class JournalLogin:
    """Gets tokens for journals: `log_in` of follow_remote() and measure_remote(). It keeps one subscription per
    journal, and gets a fresh token for each connection. Any number of threads may call it."""

    def __init__(self, access: AdminAccess) -> None:
        self._client = AdminClient.connect(access.url, access.credentials)
        self._lock = threading.Lock()
        self._subscription_ids: dict[str, str] = {}

    def close(self) -> None:
        """End the connection to the administration server; another call opens a new one."""
        self._client.close()

    def __call__(self, name: str) -> str:
        topic = journal_topic(name)
        with self._lock:
            if topic in self._subscription_ids:
                with contextlib.suppress(NotFoundError, RevokedError):  # the subscription ended: request a new one
                    return self._client.renew(self._subscription_ids[topic]).token
            brokered = self._client.subscribe((topic,))
            self._subscription_ids[topic] = brokered.subscription_id
            return brokered.token
