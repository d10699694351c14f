"""A live pair of message routers: copies, switches, kill -9, the return of the old one (REPL-2 to REPL-8)."""

from pathlib import Path

import pytest

from integration.assured_kit import client_of
from integration.pair_kit import pair_of_routers, switch_to
from integration.test_assured_router import number_of, taken


@pytest.mark.spec("REPL-3", "REPL-7")
def test_nothing_synchronous_is_lost_when_the_active_router_is_killed_and_the_other_is_forced(tmp_path: Path) -> None:
    with pair_of_routers(tmp_path) as pair, client_of(*pair.places) as client:
        with client.publisher(window=64) as publisher:
            for number in range(500):
                publisher.send("orders.new", b"%d" % number)
            publisher.flush()
            assert publisher.publish("orders.new", b"500") == "synchronous"
            pair.one.kill()
            switch_to(pair.two, force=True)
            assert publisher.publish("orders.new", b"501") == "degraded"
        with client.endpoint("orders", prefetch=1_000) as queue:
            messages = taken(queue, 502)
    assert [number_of(each) for each in messages] == list(range(502))
    assert all(each.is_redelivered for each in messages[:501])
