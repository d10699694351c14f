"""Regions shared by several processes: a process whose rights end or shrink sees nothing more in its mapping."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from admin_kit import config, credentials, credentials_file, policy_text
from children import child_environment
from integration import region_watcher
from integration.distribution_kit import NodeHere, mux_config, node_here, packed, plant_config, quote
from penstock.admin.live.driver import AdminServer
from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.record_reader import RecordsReader
from penstock.engine.client.records import Records
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import wait_until

RULES = """
[[rule]]
who = ["alice", "bob"]
receive = ["md.us.>"]

[[rule]]
who = ["filter"]
receive = [">"]
"""


def token(server: AdminServer, name: str, *topics: str) -> str:
    with AdminClient.connect(server.url, credentials(name)) as client:
        return client.subscribe(list(topics) or [">"]).token


@contextmanager
def sharing_nodes(server: AdminServer, directory: Path) -> Iterator[tuple[NodeHere, NodeHere]]:
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(directory, "filter")))
    with node_here(plant_config(admin=admin)) as plant:
        wait_until(lambda: plant.node.status().is_in_touch, "the administration server")
        with node_here(mux_config(plant.port, admin=admin, access="local", shared_regions=True)) as mux:
            wait_until(lambda: mux.node.status().is_fed and mux.node.status().is_in_touch, "the plant")
            yield plant, mux


class Watcher:
    """Another process with a mapping of its own."""

    def __init__(self, port: int, name: str, token: str, *topics: str) -> None:
        command = [sys.executable, region_watcher.__file__, str(port), name, token, *topics]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        )
        assert self._line() == "mapped"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str) -> str:
        """Send a line to the process, and return its next output line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._line()

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=120)


def is_shared_by(mux: NodeHere, count: int) -> bool:
    regions = mux.node._data._segments._regions
    return len(regions) == count and len({id(each) for each in regions.values()}) == 1


@pytest.mark.spec("ADPT-3", "MUX-2")
@pytest.mark.parametrize("how", ["revoked", "less"])
def test_whose_rights_end_or_shrink_sees_nothing_more_in_a_shared_region(tmp_path: Path, how: str) -> None:
    (tmp_path / "policy.toml").write_text(policy_text(RULES))
    with AdminServer(config(tmp_path)) as server, sharing_nodes(server, tmp_path) as (plant, mux):
        plant.publish(packed("md.us.A.quote", quote("A", 1)))
        request = ConsumerRequest(
            host="127.0.0.1",
            port=mux.port,
            topics=("md.us.>",),
            name="bob",
            cls="adaptive",
            token=token(server, "bob"),
        )
        with (
            Records(RecordsReader(request)) as staying,
            Watcher(mux.port, "alice", token(server, "alice"), "md.us.>") as watcher,
            AdminClient.connect(server.url, credentials("root")) as root,
        ):
            wait_until(lambda: is_shared_by(mux, 2), "the shared region")
            plant.publish(packed("md.us.A.quote", quote("A", 2)))
            wait_until(lambda: staying["md.us.A.quote"].source_seq == 2 and watcher.tell("look") == "2", "the update")
            if how == "revoked":
                root.revoke("alice", "left the firm")
                wait_until(lambda: len(mux.consumer_names()) == 1, "the disconnect of alice")
            else:
                watcher.tell("renew " + token(server, "alice", "md.us.B.>"))
            plant.publish(packed("md.us.A.quote", quote("A", 3)))
            wait_until(lambda: staying["md.us.A.quote"].source_seq == 3, "the update for the remaining consumer")
            assert watcher.tell("look") == "2"
        wait_until(lambda: not mux.node._handover._offers, "the segments to be withdrawn")
