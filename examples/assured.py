"""Assured messages: a message router, a publisher, a consumer, a transaction, and a kill -9 in between.

    python examples/assured.py

The router runs in a separate process, in a temporary directory. When the router is killed, no acknowledged message is
lost; unsettled messages are delivered again, with a flag.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from penstock.assured import EndpointConfig, Want
from penstock.assured.client import open_assured

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),))
FILLS = EndpointConfig(name="fills", wants=(Want(topics=("fills.>",)),))


@contextmanager
def router(directory: str, port: int = 0) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run a router; yields its process and its client port."""
    words = [*COMMAND, "--log-level", "WARNING", "router", "run", directory, "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())["control_port"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def main() -> None:
    with TemporaryDirectory() as directory:
        with router(directory) as (process, port), open_assured(f"127.0.0.1:{port}") as assured:
            assured.create_endpoint(ORDERS)
            assured.create_endpoint(FILLS)
            with assured.publisher() as orders:
                for number in range(1, 1_001):
                    orders.send("orders.new", b"buy %d AAPL" % number)
                orders.flush()
            print("1,000 orders are stored")
            process.kill()

        with router(directory, port), open_assured(f"127.0.0.1:{port}") as assured:
            print(f"the router was killed; it has {assured.endpoints('orders')[0].messages:,} orders")
            with assured.endpoint("orders") as queue:
                for count, order in enumerate(queue, start=1):
                    with assured.transaction() as transaction:
                        transaction.publish("fills.new", b"filled: " + order.payload)
                        transaction.ack(order)
                    if count == 10:
                        break
            flagged = "may have been" if order.is_redelivered else "was not"
            print(f"10 were filled; the last one {flagged} delivered before")
            with assured.endpoint("fills") as fills:
                print(*(fill.payload.decode() for fill in fills.take(10, timeout=10.0)[:2]), "...", sep="\n")


if __name__ == "__main__":
    main()
