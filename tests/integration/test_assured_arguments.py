"""Invalid arguments of an application are refused in the call itself, and the session continues."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from integration.assured_kit import client_of, router_config, router_here
from penstock.assured.client import Assured, AssuredEndpoint, AssuredPublisher, open_assured
from penstock.assured.config import EndpointConfig
from penstock.base.errors import ConfigurationError, LocalProtocolError, PenstockError
from waiting import PATIENCE_SECONDS

TOPIC = "orders.new"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assured]:
    with router_here(router_config(tmp_path_factory.mktemp("state"))) as router, client_of(router.place) as opened:
        yield opened


@pytest.fixture(scope="module")
def publisher(client: Assured) -> Iterator[AssuredPublisher]:
    with client.publisher() as made:
        yield made


@pytest.fixture(scope="module")
def queue(client: Assured) -> Iterator[AssuredEndpoint]:
    client.create_endpoint(EndpointConfig(name="empty"))
    with client.endpoint("empty") as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        ((None, b""), {}, "a topic is text, not None"),
        ((b"orders.new", b""), {}, "a topic is text, not bytes"),
        ((["orders"], b""), {}, "a topic is text, not list"),
        ((TOPIC, None), {}, "a payload is bytes, or a message of a model, not None"),
        ((TOPIC, 5), {}, "a payload is bytes, or a message of a model, not int"),
        ((TOPIC, "text"), {}, "a payload is bytes, not text"),
        ((TOPIC, b""), {"priority": "9"}, "invalid priority '9' .a whole number, 0 to 9"),
        ((TOPIC, b""), {"priority": 4.0}, r"invalid priority 4\.0"),
        ((TOPIC, b""), {"priority": None}, "invalid priority None"),
        ((TOPIC, b""), {"priority": -1}, "invalid priority -1 .0 to 9"),
        ((TOPIC, b""), {"ttl_ms": 1.5}, r"invalid ttl_ms 1\.5 .a whole number, 0 to 4,294,967,295"),
        ((TOPIC, b""), {"model_id": "7"}, "invalid model_id '7'"),
        ((TOPIC, b""), {"model_version": 2**16}, "invalid model_version 65536"),
        ((TOPIC, b""), {"replication": "some"}, "unknown replication 'some' .none, asynchronous, synchronous"),
        ((TOPIC, b""), {"replication": ["none"]}, "unknown replication"),
    ],
)
def test_a_message_that_cannot_be_made(
    publisher: AssuredPublisher, words: tuple[Any, ...], options: dict[str, Any], told: str
) -> None:
    for publish in (publisher.publish, publisher.send):
        with pytest.raises(LocalProtocolError, match=told):
            publish(*words, **options)
    assert publisher.publish(TOPIC, b"x", priority=numpy.int64(7)) == "stored"


@pytest.mark.parametrize("timeout", ["3", float("nan"), [], b"1"])
def test_a_timeout_that_is_no_time(publisher: AssuredPublisher, queue: AssuredEndpoint, timeout: Any) -> None:
    for call in (
        lambda: publisher.publish(TOPIC, b"", timeout=timeout),
        lambda: publisher.flush(timeout),
        lambda: queue.next(timeout),
        lambda: queue.take(1, timeout),
    ):
        with pytest.raises(LocalProtocolError, match=r"invalid timeout .* \(seconds, or None"):
            call()


def test_a_timeout_may_be_over_or_endless(publisher: AssuredPublisher, queue: AssuredEndpoint) -> None:
    assert publisher.publish(TOPIC, b"", timeout=float("inf")) == "stored"
    assert publisher.publish(TOPIC, b"", timeout=10**12) == "stored"
    assert publisher.flush(float("inf"))
    assert publisher.flush(numpy.float32(PATIENCE_SECONDS))
    assert queue.next(-1) is None
    assert queue.take(1, 0) == []


@pytest.mark.parametrize("count", [-1, 0, 1.5, "1", None, 2**32])
def test_a_number_of_messages_that_is_none(client: Assured, queue: AssuredEndpoint, count: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"invalid number of messages .* \(1 to 4,294,967,295"):
        queue.take(count, PATIENCE_SECONDS)
    with pytest.raises(LocalProtocolError, match="invalid prefetch"):
        client.endpoint("orders", prefetch=count)
    for option in ("window", "window_bytes_max"):
        with pytest.raises(LocalProtocolError, match=f"invalid {option}"):
            client.publisher(**{option: count if count != 2**32 else 2**64})


def test_what_a_name_may_be_is_said_in_words(client: Assured) -> None:
    told = "expected a name of letters, digits, dots, dashes and underscores"
    with pytest.raises(ConfigurationError, match=f"EndpointConfig: name: {told}"):
        EndpointConfig(name="no name")
    for call in (client.endpoint, client.delete_endpoint, client.empty_endpoint):
        with pytest.raises(LocalProtocolError, match=f"invalid argument: {told}"):
            call("no name")


def test_an_endpoint_begins_with_a_message_or_at_a_time(client: Assured) -> None:
    with pytest.raises(LocalProtocolError, match="give one of them"):
        client.create_endpoint(EndpointConfig(name="both"), from_id=7, from_time_ns=5)


@pytest.mark.parametrize("place", ["penstock://127.0.0.1:7460", "me@host:7460", "a host:7460", "127.0.0.1", ":7460"])
def test_a_place_that_is_none_is_refused_at_once(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not an address \(write host:port"):
        open_assured(place)


def test_a_closed_session_says_so(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path)) as router:
        with client_of(router.place) as client, client.publisher() as publisher:
            with client.transaction() as used:
                used.publish(TOPIC, b"x")
            transaction = client.transaction()
            transaction.__enter__()
            queue = client.endpoint("orders")
        calls: tuple[Callable[[], Any], ...] = (
            client.endpoints,
            client.transaction,
            client.publisher,
            lambda: client.endpoint("orders"),
            lambda: client.create_endpoint(EndpointConfig(name="more")),
            transaction.commit,
            lambda: publisher.publish(TOPIC, b"x"),
            lambda: queue.take(256),
        )
        for call in calls:
            with pytest.raises(PenstockError, match="is closed"):
                call()
