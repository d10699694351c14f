"""The streams of clients' publishers: each has a multicast group, an id and authentication keys of its own.

A stream belongs to a subscription with grants to send, and exists as long as the subscription. Subscribers with live
grants for its topics get the stream among theirs.
"""

from collections.abc import Callable, Iterable

from penstock.admin.config import PublishingConfig
from penstock.admin.core.feeds import common_patterns
from penstock.admin.core.records import PublisherStream, Subscription
from penstock.admin.core.state import State
from penstock.base.errors import LimitError
from penstock.base.ids import format_group, parse_group
from penstock.security.core.brokering import Authentication, BrokeredStream, Publication, StreamAddress
from penstock.security.core.token import Grant

EPOCH = 1
"""The epoch of every stream: its id is new for each start of a publisher."""


class PublisherStreams:
    """`new_id` returns an id that no publisher has."""

    def __init__(self, state: State, config: PublishingConfig, new_id: Callable[[], int]) -> None:
        self._state = state
        self._config = config
        self._new_id = new_id
        self.authenticate: Callable[[str, str, int], Authentication]
        """Gives a client the authentication keys of a scope (StreamAuthentication.hand_out)."""

    def new_stream(self) -> PublisherStream:
        taken = {each.stream.group for each in self._state.subscriptions.values() if each.stream is not None}
        first = parse_group(self._config.first_group)
        groups = (format_group(first + number) for number in range(self._config.groups))
        group = next((each for each in groups if each not in taken), None)
        if group is None:
            raise LimitError(
                f"there are {self._config.groups} publishers already, which have all multicast groups",
                hint="close publishers, or raise publishing.groups",
            )
        return PublisherStream(self._new_id(), group, self._config.port)

    def publication(self, publisher: Subscription, now_ns: int) -> Publication | None:
        """The stream of a subscription, for its own client."""
        stream = publisher.stream
        if stream is None:
            return None
        return Publication(
            publisher_id=stream.publisher_id,
            epoch=EPOCH,
            group=stream.group,
            port=stream.port,
            authentication=self.authenticate(publisher.client, scope_of(publisher), now_ns),
        )

    def streams(self, subscription: Subscription, now_ns: int) -> list[BrokeredStream]:
        """The streams with topics that a subscription receives without a delay."""
        return [
            self._stream(subscription.client, publisher, topics, now_ns)
            for publisher in self._publishers()
            if (topics := _received(subscription.grants, publisher))
        ]

    def receivers(self, publisher: Subscription) -> list[str]:
        """The ids of the subscriptions that receive the stream of this one."""
        if publisher.stream is None:
            return []
        return [name for name, each in self._state.subscriptions.items() if _received(each.grants, publisher)]

    def scopes(self) -> list[str]:
        return [scope_of(each) for each in self._publishers()]

    def publisher(self, scope: str) -> Subscription | None:
        """The subscription whose stream has this scope."""
        found = self._state.subscriptions.get(scope.rpartition("/")[2])
        return found if found is not None and found.stream is not None and scope_of(found) == scope else None

    def may_hold(self, client: str, grants: Iterable[Grant], publisher: Subscription) -> bool:
        """True if a client with these grants may have the keys of a stream: as its publisher or as a receiver."""
        return client == publisher.client or bool(_received(grants, publisher))

    def _publishers(self) -> list[Subscription]:
        return [each for each in self._state.subscriptions.values() if each.stream is not None]

    def _stream(self, client: str, publisher: Subscription, topics: list[str], now_ns: int) -> BrokeredStream:
        assert publisher.stream is not None
        scope = scope_of(publisher)
        address = StreamAddress(
            adapter=publisher.client,
            role="active",
            publisher_id=publisher.stream.publisher_id,
            transport="multicast",
            group=publisher.stream.group,
            port=publisher.stream.port,
            service_host="",
            service_port=0,
        )
        return BrokeredStream(
            feed=scope,
            source_streams=[],
            topics=topics,
            delay_s=0,
            sealed=False,
            keys=[],
            models=[],
            addresses=[address],
            authentication=self.authenticate(client, scope, now_ns),
        )


def scope_of(publisher: Subscription) -> str:
    """The scope of a stream's keys, which is also the name of its feed; no adapter's feed can have this name."""
    return f"@{publisher.client}/{publisher.subscription_id}"


def _received(grants: Iterable[Grant], publisher: Subscription) -> list[str]:
    """Patterns of the stream's topics that these grants allow to receive without a delay."""
    live = [each for each in grants if each.delay_s == 0]
    sent = [each.pattern for each in publisher.grants if each.action == "send"]
    patterns = common_patterns(live, [each for each in sent if not each.startswith("!")], "receive")
    return [*patterns, *(each for each in sent if each.startswith("!"))] if patterns else []
