"""The core of an administration server, and a clock that the test sets."""

import itertools
from collections.abc import Callable

from admin_kit import policy_text, registration
from penstock.admin import AdminLimits, Caller, StreamAdministration
from penstock.admin.core.state import Stored
from penstock.base.clock import NS_PER_SECOND
from penstock.security import Policy, PrivateKey
from penstock.security.core.brokering import (
    AdapterHeartbeat,
    Brokered,
    EventBody,
    HeartbeatAnswer,
    ModifyRequest,
    Registered,
    SubscribeRequest,
)
from penstock.security.core.operating import RevokeRequest

NOW_NS = 1_700_000_000 * NS_PER_SECOND
KEY = PrivateKey(bytes(range(32)))
LIMITS = AdminLimits(key_grace_s=1.0, key_rotation_s=10.0)


def random_numbers() -> Callable[[int], bytes]:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


class Plant:
    """A core, and a clock that the test sets."""

    def __init__(self, limits: AdminLimits = LIMITS, records: list[Stored] | None = None, now_ns: int = NOW_NS) -> None:
        self.limits = limits
        self.now_ns = now_ns
        self.core = StreamAdministration(
            Policy.parse(policy_text()), KEY, limits, random_numbers(), records or [], now_ns
        )

    def caller(self, name: str) -> Caller:
        return Caller(name, self.core.policy.clients[name].roles, "127.0.0.1")

    def subscribe(self, client: str, *topics: str, send: tuple[str, ...] = (), name: str = "s1") -> Brokered:
        request = SubscribeRequest(subscription_id=name, topics=list(topics), send=list(send))
        return self.core.subscribe(self.caller(client), request, self.now_ns)

    def register(self, **values: object) -> Registered:
        return self.core.register(self.caller("feed"), registration(**values), self.now_ns)

    def beat(self, adapter: str = "a", term: int = 0, key_ids: tuple[int, ...] = (1,)) -> HeartbeatAnswer:
        heartbeat = AdapterHeartbeat(feed="itch", adapter=adapter, term=term, key_ids=list(key_ids))
        return self.core.heartbeat(self.caller("feed"), heartbeat, self.now_ns)

    def revoke(self, name: str, *topics: str, reason: str = "left the firm") -> list[str]:
        request = RevokeRequest(client=name, reason=reason, topics=list(topics) or [">"])
        return self.core.revoke(self.caller("root"), request, self.now_ns).subscriptions

    def events(self, name: str, after: int = 0) -> list[EventBody]:
        return [each.body for each in self.core.events(self.caller(name), after).events]

    def confirm(self, name: str, session: str = "") -> None:
        """The client polls with the number of the last event, and so confirms all events."""
        number = self.core.state.meta.event_number
        reader = self.core.readers.begin(name, session or name, number, self.now_ns)
        self.core.readers.end(reader, self.now_ns)

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_SECOND)
        self.core.tick(self.now_ns)

    def modify(self, client: str, *topics: str, name: str = "s1") -> Brokered:
        return self.core.modify(self.caller(client), name, ModifyRequest(topics=list(topics)), self.now_ns)

    def cancel(self, client: str, name: str = "s1") -> None:
        self.core.cancel(self.caller(client), name, self.now_ns)

    def set_policy(self, policy: Policy) -> list[str]:
        return self.core.set_policy(self.caller("root"), policy, self.now_ns).revoked

    def again(self, now_ns: int) -> "Plant":
        """The same server after a restart at that time, from its records."""
        records = {(each.kind, each.key): each for each in self.core.state.take_changes()}
        found = Plant(self.limits, [each for each in records.values() if each.record is not None], now_ns)
        found.core.rights.policy = self.core.policy
        return found
