"""client.publisher() → client.subscribe() by multicast, brokered by an administration server.

Can be run separately: python -m penstock.bench.frontdoor.through_plant
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock.admin.config import AdminConfig, PublishingConfig
from penstock.admin.live.driver import AdminServer
from penstock.bench.frontdoor.beside_nats import PATTERN, Publish, Way, compare
from penstock.bench.harness import Result
from penstock.client import ClientConfig
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from penstock.security import PrivateKey

CLIENT = "desk"
POLICY = """
[clients.desk]
key = "{key}"

[[rule]]
who = ["desk"]
send = ["app.desk.>"]
receive = ["app.desk.>"]
"""
CONFIG = ClientConfig(filter="none")


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        key = PrivateKey((1).to_bytes(32, "big"))
        key.write(directory / "desk.pem")
        write_private(directory / "desk.toml", b'client = "desk"\nkey_file = "desk.pem"\n')
        policy = directory / "policy.toml"
        policy.write_text(POLICY.format(key=key.public.text))
        (port,) = free_ports(1)
        config = AdminConfig(
            directory=str(directory / "admin"), policy=str(policy), port=0, publishing=PublishingConfig(port=port)
        )
        with AdminServer(config) as server:
            way = Way("multicast from publisher to subscriber", _publisher, _subscription)
            yield from compare("publisher_to_subscriber", way, f"{server.url} {directory / 'desk.toml'}")


@contextmanager
def _publisher(place: str) -> Iterator[Publish]:
    url, credentials = place.split()
    with (
        penstock.connect(url, credentials=credentials, config=CONFIG) as client,
        client.publisher(PATTERN) as publisher,
    ):
        yield publisher.publish


@contextmanager
def _subscription(place: str) -> Iterator[Iterator[bytes]]:
    url, credentials = place.split()
    with (
        penstock.connect(url, credentials=credentials, config=CONFIG) as client,
        client.subscribe(PATTERN) as subscription,
    ):
        yield (bytes(message.payload) for message in subscription)


if __name__ == "__main__":
    for each in run():
        sys.stdout.write(f"{each.metric}: {each.value:,.2f} {each.unit} ({each.conditions})\n")
