"""Receivers of packets: applications, and consumers, each of which gets its own copy for one or several
applications."""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.base.ids import format_group, parse_group
from penstock.filter.config import FilterConfig
from penstock.filter.core.control import GROUP_KEY_ID, OWN_KEY_ID
from penstock.filter.core.events import Address, Attach, Attached, Delivery, FilterInstruction, Opened, Shut
from penstock.filter.core.interests import Slot, Terms
from penstock.filter.core.kernel._consumers import Mode
from penstock.filter.core.kernel._forward import Forwarder
from penstock.filter.core.number_pool import NumberPool
from penstock.filter.core.request_window import RequestWindow
from penstock.middleware import Unicast
from penstock.wire import AuthenticationKey
from penstock.wire._authentication import trailer_under
from penstock.wire.authentication import KEY_SIZE

SharedKey: TypeAlias = tuple[str, str]
"""Host and entitlement text: applications with equal values may share a copy."""

MODES: dict[Delivery, Mode] = {
    "unicast": Mode.OWN,
    "ring": Mode.OWN,
    "mask": Mode.MASK,
    "residual": Mode.RESIDUAL,
}

GROUP_LAST = parse_group("239.255.255.255")
APPLICATIONS_SHARING_MAX = 64
"""Maximum number of applications per shared copy, so that a mask fits into one word."""


class Consumer:
    """A receiver of one copy. Only in the shared modes it has several applications."""

    def __init__(
        self,
        number: int,
        delivery: Delivery,
        address: Address,
        shared_key: SharedKey | None,
        key: AuthenticationKey | None = None,
    ) -> None:
        self.number = number
        self.delivery = delivery
        self.address = address
        self.shared_key = shared_key
        self.key = key
        self.applications: dict[int, Application] = {}  # by bit
        self.listening: Counter[int] = Counter()
        """Number of its applications that need each group."""


class Application:
    """One application with its interests."""

    def __init__(
        self,
        number: int,
        address: Address,
        consumer: Consumer,
        bit: int,
        name: str,
        key: AuthenticationKey | None = None,
    ) -> None:
        self.key = key
        self.requests = RequestWindow()
        self.number = number
        self.name = name
        self.address = address
        self.consumer = consumer
        self.bit = bit
        self.slots: dict[Terms, Slot] = {}
        self.listening: Counter[int] = Counter()
        """Number of its interests that need each group."""

    def unicast(self, data: bytes) -> Unicast:
        """A packet to this application alone, from the module's own socket."""
        return Unicast(self.address, data if self.key is None else data + trailer_under(data, self.key))

    @property
    def interest_count(self) -> int:
        return sum(len(slot.interests) for slot in self.slots.values())


class Audience:
    """All applications and consumers."""

    def __init__(
        self, config: FilterConfig, forwarder: Forwarder, random: Callable[[int], bytes] | None = None
    ) -> None:
        """With `random` bytes for keys, datagrams between the module and its applications have trailers."""
        self._random = random
        self.applications: dict[int, Application] = {}
        self.consumers: dict[int, Consumer] = {}
        self._config = config
        self._forwarder = forwarder
        self._by_address: dict[Address, Application] = {}
        self._shared: dict[SharedKey, list[Consumer]] = {}
        limit = config.applications_max
        self._numbers = NumberPool(limit, "consumers", "raise applications_max")
        shared_max = min(limit, GROUP_LAST - parse_group(config.shared_group) + 1)
        self._shared_numbers = NumberPool(shared_max, "addresses of shared delivery", "begin with a lower shared_group")

    def known(self, number: int) -> Application:
        application = self.applications.get(number)
        if application is None:
            raise LocalProtocolError(f"application {number} is not attached")
        return application

    def at(self, address: Address) -> Application | None:
        """The application that sends datagrams from this address."""
        return self._by_address.get(address)

    def attach(self, event: Attach) -> list[FilterInstruction]:
        if event.application in self.applications:
            raise LocalProtocolError(f"application {event.application} is already attached")
        if event.address in self._by_address:
            raise LocalProtocolError(f"another application has the address {event.address[0]}:{event.address[1]}")
        if len(self.applications) >= self._config.applications_max:
            raise LimitError(
                f"the limit of {len(self.applications)} applications is reached", hint="raise applications_max"
            )
        instructions: list[FilterInstruction] = []
        key = self._new_key(OWN_KEY_ID)
        consumer = self._shared_consumer(event) if event.delivery == "shared" else None
        if consumer is None:
            consumer = self._open(event, key)
            instructions.append(Opened(consumer.number, consumer.delivery, consumer.address, consumer.key))
        bit = next(bit for bit in range(APPLICATIONS_SHARING_MAX) if bit not in consumer.applications)
        name = event.name or str(event.application)
        application = Application(event.application, event.address, consumer, bit, name, key)
        consumer.applications[bit] = application
        self.applications[event.application] = application
        self._by_address[event.address] = application
        self._forwarder.set_application(application.number, consumer.number, bit)
        instructions.append(
            Attached(
                application.number,
                consumer.number,
                consumer.delivery,
                consumer.address,
                bit,
                key,
                consumer.key if consumer.shared_key is not None else None,
            )
        )
        return instructions

    def detach(self, application: Application) -> list[FilterInstruction]:
        """Remove an application without interests."""
        consumer = application.consumer
        self._forwarder.clear_application(application.number)
        del self.applications[application.number]
        del self._by_address[application.address]
        del consumer.applications[application.bit]
        return [] if consumer.applications else [self._shut(consumer)]

    def _shared_consumer(self, event: Attach) -> Consumer | None:
        """A shared consumer with room for another application."""
        for consumer in self._shared.get((event.host, event.entitlement), ()):
            if len(consumer.applications) < APPLICATIONS_SHARING_MAX:
                return consumer
        return None

    def _new_key(self, key_id: int) -> AuthenticationKey | None:
        return None if self._random is None else AuthenticationKey(key_id, self._random(KEY_SIZE))

    def _open(self, event: Attach, own_key: AuthenticationKey | None) -> Consumer:
        if event.delivery == "shared":
            key = (event.host, event.entitlement)
            address = self._shared_address(self._shared_numbers.take())
            consumer = Consumer(self._numbers.take(), self._config.shared, address, key, self._new_key(GROUP_KEY_ID))
            self._shared.setdefault(key, []).append(consumer)
        else:
            consumer = Consumer(self._numbers.take(), event.delivery, event.address, None, own_key)
        number = consumer.number
        self.consumers[number] = consumer
        self._forwarder.set_consumer(number, MODES[consumer.delivery])
        return consumer

    def _shut(self, consumer: Consumer) -> Shut:
        if consumer.shared_key is not None:
            self._shared[consumer.shared_key].remove(consumer)
            if not self._shared[consumer.shared_key]:
                del self._shared[consumer.shared_key]
            self._shared_numbers.give_back(parse_group(consumer.address[0]) - parse_group(self._config.shared_group))
        del self.consumers[consumer.number]
        self._forwarder.clear_consumer(consumer.number)
        self._numbers.give_back(consumer.number)
        return Shut(consumer.number)

    def _shared_address(self, number: int) -> Address:
        return format_group(parse_group(self._config.shared_group) + number), self._config.shared_port
