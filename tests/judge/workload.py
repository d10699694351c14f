"""Clients of message routers with random actions from a seed, which record all of them. Each is a thread with a session
of its own, which sometimes ends in the middle of an action."""

import asyncio
import contextlib
import hashlib
import os
import random
import sys
import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from integration.assured_kit import client_of
from judge.history import Acknowledged, Delivered, Ended, Ending, History, Published, Settled, Wanted, What
from penstock.assured.client import Assured, AssuredEndpoint, AssuredPublisher, Delivery
from penstock.assured.client.transaction import Transaction
from penstock.base.errors import RefusedError, UnreachableError
from penstock.net.config import TlsConfig
from penstock.net.guard import Guard
from penstock.net.secret import read_secret
from penstock.net.tls import client_context
from waiting import PATIENCE_SECONDS

ANSWER_SECONDS = 3.0
PACE_SECONDS = 0.03
WORK, FILLS, DEAD = "work", "fills", "dead"
REFUSED_SECONDS = 0.1
DEATHS = 0.01
"""Probability that a session ends, at each opportunity."""


def content_of(key: str) -> bytes:
    """The payload of the message with this key: a consumer can check it."""
    digest = hashlib.sha256(key.encode()).digest()
    return b"%s|%s" % (key.encode(), digest * (1 + digest[0] % 16))


def key_of(payload: bytes) -> str:
    key = payload.partition(b"|")[0].decode(errors="replace")
    return key if payload == content_of(key) else f"damaged {payload[:40]!r}"


class Access(msgspec.Struct, frozen=True):
    """The routers' addresses for clients; beyond the loopback interface with TLS and a secret."""

    places: tuple[str, ...]
    ca_file: str = ""
    secret_file: str = ""

    def session(self, *places: str, **options: Any) -> Assured:
        """Addresses of these routers, or of all."""
        return client_of(*(places or self.places), guard=self._guard(), **options)

    def _guard(self) -> Guard:
        if not self.ca_file:
            return Guard()
        context = client_context(TlsConfig(certificate="", private_key="", ca_file=self.ca_file))
        return Guard(read_secret(Path(self.secret_file)), context)


class Worker(threading.Thread):
    """Works until `finishing` is set; an unexpected error ends its process."""

    def __init__(self, name: str, access: Access, seed: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.chance = random.Random(seed)
        self.history = history
        self.finishing = threading.Event()
        self._access = access
        self._lives = 0

    def run(self) -> None:
        try:
            while not self.finishing.is_set():
                self._lives += 1
                with contextlib.suppress(UnreachableError), self._session() as client:
                    self.live(client, f"{self.name}-{self._lives}")
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    @abstractmethod
    def live(self, client: Assured, name: str) -> None:
        """Work until the session dies, or `finishing` is set."""

    def _session(self) -> Assured:
        return self._access.session(silence_ms=1_000, welcome_ms=1_000, answer_seconds=ANSWER_SECONDS)


class Publisher(Worker):
    """`wanted`: the protections of its messages, chosen at random."""

    def __init__(self, name: str, access: Access, seed: str, history: History, *wanted: Wanted) -> None:
        super().__init__(name, access, seed, history)
        self._wanted = wanted

    def live(self, client: Assured, name: str) -> None:
        publisher = client.publisher()
        number = 0
        while not self.finishing.is_set():
            count = self.chance.choice((1, 1, 8, 64))
            messages = [self._message(name, number + each) for each in range(count)]
            number += count
            self.chance.choice((self._one_by_one, self._at_once, self._and_flush))(publisher, messages)
            if self.chance.random() < DEATHS:
                return
            self.finishing.wait(PACE_SECONDS)
        with contextlib.suppress(RefusedError):  # recorded on arrival
            assert publisher.flush(PATIENCE_SECONDS), "the published message is not acknowledged"

    def _message(self, name: str, number: int) -> Published:
        topic = self.chance.choice(("orders.new", "orders.more", f"{WORK}.new"))
        wanted = self.chance.choice(self._wanted)
        return Published(key=f"{name}.{number}", publisher=name, number=number, topic=topic, wanted=wanted)

    def _one_by_one(self, publisher: AssuredPublisher, messages: list[Published]) -> None:
        for each in messages[:8]:
            self.history.write(each)
            try:
                outcome = publisher.publish(
                    each.topic, content_of(each.key), replication=each.wanted, timeout=ANSWER_SECONDS
                )
            except RefusedError:
                outcome = "refused"
                self.finishing.wait(REFUSED_SECONDS)
            self.history.write(Acknowledged(key=each.key, outcome=outcome))

    def _at_once(self, publisher: AssuredPublisher, messages: list[Published]) -> None:
        async def publish(each: Published) -> None:
            self.history.write(each)
            try:
                outcome = await publisher.publish_async(each.topic, content_of(each.key), replication=each.wanted)
            except RefusedError:
                outcome = "refused"
            self.history.write(Acknowledged(key=each.key, outcome=outcome))

        async def publish_all() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*(publish(each) for each in messages))

        asyncio.run(publish_all())

    def _and_flush(self, publisher: AssuredPublisher, messages: list[Published]) -> None:
        numbers = {}
        for each in messages:
            self.history.write(each)
            numbers[publisher.send(each.topic, content_of(each.key), replication=each.wanted)] = each.key
        try:
            if not publisher.flush(ANSWER_SECONDS):
                return
        except RefusedError:
            pass
        refused = {number for first, last, _ in publisher.refused for number in range(first, last + 1)}
        for number, key in numbers.items():
            self.history.write(Acknowledged(key=key, outcome="refused" if number in refused else "acknowledged"))


class Reader(Worker):
    """A worker with a flow from an endpoint. With `is_draining`, everything is acknowledged and no session dies."""

    def __init__(self, name: str, access: Access, seed: str, history: History, endpoint: str) -> None:
        super().__init__(name, access, seed, history)
        self.endpoint = endpoint
        self.is_draining = False
        self._deliveries = 0

    def live(self, client: Assured, name: str) -> None:
        queue = client.endpoint(self.endpoint, prefetch=self.chance.choice((1, 16, 256)))
        while not self.finishing.is_set():
            messages = queue.take(self.chance.randint(1, 64), 0.05)
            if messages and not self.work(client, queue, name, messages):
                return

    @abstractmethod
    def work(self, client: Assured, queue: AssuredEndpoint, name: str, messages: list[Delivery]) -> bool:
        """Return True if the session continues."""

    def dies(self) -> bool:
        return not self.is_draining and self.chance.random() < DEATHS

    def came(self, name: str, message: Delivery) -> str:
        self._deliveries += 1
        delivery = f"{self.name}.{self._deliveries}"
        self.history.write(
            Delivered(
                delivery=delivery,
                endpoint=self.endpoint,
                flow=f"{name}.{message.opened}",
                key=key_of(message.payload),
                id=message.id,
                is_redelivered=message.is_redelivered,
            )
        )
        return delivery

    def settle(self, delivery: str, what: What, call: Callable[[], int], transaction: str = "") -> None:
        self.history.write(Settled(delivery=delivery, what=what, transaction=transaction))
        if not call():
            self.history.write(Settled(delivery=delivery, what=what, transaction=transaction, is_late=True))


class Consumer(Reader):
    """Acknowledges most deliveries, releases or rejects some, and leaves some unsettled when the session dies."""

    def work(self, client: Assured, queue: AssuredEndpoint, name: str, messages: list[Delivery]) -> bool:
        for message in messages:
            delivery = self.came(name, message)
            if self.dies():
                return False
            chance = 0.0 if self.is_draining else self.chance.random()
            if chance < 0.94:
                self.settle(delivery, "ack", lambda message=message: queue.ack(message))
            elif chance < 0.98 or self.endpoint == DEAD:  # a message rejected there is dropped
                self.settle(delivery, "nack", lambda message=message: queue.nack(message))
            else:
                self.settle(delivery, "reject", lambda message=message: queue.reject(message))
        return True


class Transactor(Reader):
    """Consumes and publishes in one transaction: fills for some orders."""

    def __init__(self, name: str, access: Access, seed: str, history: History, wanted: Wanted) -> None:
        super().__init__(name, access, seed, history, WORK)
        self._wanted = wanted
        self._transactions = 0

    def work(self, client: Assured, queue: AssuredEndpoint, name: str, messages: list[Delivery]) -> bool:
        came = [(self.came(name, message), message) for message in messages]
        while came:
            count = self.chance.randint(1, 4)
            portion, came = came[:count], came[count:]
            self._transactions += 1
            if not self._transact(client, f"{self.name}-t{self._transactions}", portion):
                return False
        return True

    def _transact(self, client: Assured, name: str, portion: list[tuple[str, Delivery]]) -> bool:
        transaction = client.transaction()
        transaction.__enter__()
        try:
            for number in range(self.chance.randint(1, 3)):
                topic = self.chance.choice((f"{FILLS}.new", "orders.filled"))
                key = f"{name}.{number}"
                self.history.write(
                    Published(
                        key=key, publisher=name, number=number, topic=topic, wanted=self._wanted, transaction=name
                    )
                )
                transaction.publish(topic, content_of(key), replication=self._wanted)
            for delivery, message in portion:
                self.settle(delivery, "ack", lambda message=message: self._acked(transaction, message), name)
            if self.dies():
                return False
            is_commit = self.is_draining or self.chance.random() < 0.8
            self.history.write(Ending(transaction=name, is_commit=is_commit))
            if is_commit:
                treatment = transaction.commit()
                self.history.write(Ended(transaction=name, outcome="committed", treatment=treatment))
            else:
                transaction.rollback()
                self.history.write(Ended(transaction=name, outcome="rolled back"))
        except RefusedError as error:
            self.finishing.wait(REFUSED_SECONDS)
            if error.peer_code != "rolled-back":  # a message of a lost link cannot be settled
                transaction.rollback()
            self.history.write(Ended(transaction=name, outcome="rolled back"))
        return True

    @staticmethod
    def _acked(transaction: Transaction, message: Delivery) -> int:
        transaction.ack(message)
        return 1
