"""The console's cores: sessions, access control, configuration, and the graph of a plant."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.assured.config import EndpointConfig
from penstock.assured.core.status import Replication, RouterStatus, WitnessStatus
from penstock.assured.wire.control import EndpointInfo
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, RateLimitedError, TokenError
from penstock.node.console_config import ConsoleConfig, ConsoleLimits
from penstock.node.plant import Plant
from penstock.plant.core.status import NodeStatus
from penstock.security import Credentials
from penstock.security.live.client import AdminClient
from penstock.security.live.http import parse_addresses
from penstock.top.core.picture import State
from penstock.top.core.places import Place, places_of_plant
from penstock.top.core.reading import Reading, Status
from penstock.top.core.watch import Watch
from penstock.web.core.picture import ROWS_MAX, Operator, PictureDocument, Topology, with_actions
from penstock.web.live.guard import HEADERS
from penstock.web.live.sessions import Session, Sessions

PLANT = """
name = "trial"
[[plant]]
name = "records"
channels = ["239.255.88.1:17488"]
control.port = 7410
[[mux]]
name = "mux"
upstream = { port = 7410 }
control.port = 7411
[[edge]]
name = "screens"
upstream = { port = 7411 }
[[console]]
port = 0
"""


def session(client: str = "alice", now_ns: int = 0) -> Session:
    credentials = Credentials(client, secret=b"the secret of somebody")
    admin = AdminClient(parse_addresses("penstock://127.0.0.1:7400"), credentials)
    return Session(client, frozenset(), admin, "127.0.0.1", now_ns)


class Desk:
    """Sessions with predictable keys."""

    def __init__(self, **limits: Any) -> None:
        self.ended: list[Session] = []
        self._number = 0
        self.sessions = Sessions(ConsoleLimits(**limits), self._random, self.ended.append)

    def _random(self, size: int) -> bytes:
        self._number += 1
        return self._number.to_bytes(size, "big")


# Sessions


def test_a_session_ends_after_idle_time_and_at_its_maximum_age() -> None:
    desk = Desk(session_s=100, idle_s=10)
    key = desk.sessions.open(session(), 0)
    for second in range(9, 99, 9):
        assert desk.sessions.find(key, second * NS_PER_SECOND).client == "alice"
    with pytest.raises(TokenError):
        desk.sessions.find(key, 100 * NS_PER_SECOND)
    other = desk.sessions.open(session(now_ns=0), 0)
    desk.sessions.tick(9 * NS_PER_SECOND)
    assert len(desk.sessions) == 1
    desk.sessions.tick(10 * NS_PER_SECOND)
    assert len(desk.sessions) == 0
    assert len(desk.ended) == 2
    with pytest.raises(TokenError):
        desk.sessions.find(other, 10 * NS_PER_SECOND)


def test_an_open_socket_keeps_its_session_alive() -> None:
    desk = Desk(idle_s=10)
    opened = session()
    opened.sockets.add(lambda: None)
    desk.sessions.open(opened, 0)
    desk.sessions.tick(50 * NS_PER_SECOND)
    assert len(desk.sessions) == 1
    opened.sockets.clear()
    desk.sessions.tick(61 * NS_PER_SECOND)
    assert len(desk.sessions) == 0


def test_sessions_are_bounded_and_keys_are_long() -> None:
    desk = Desk(sessions_max=3, client_sessions_max=2)
    first, second = (desk.sessions.open(session(now_ns=at), at) for at in (1, 2))
    assert len(first) == 64
    desk.sessions.find(first, 3)
    desk.sessions.open(session(now_ns=4), 4)
    with pytest.raises(TokenError):
        desk.sessions.find(second, 5)  # least recently used
    desk.sessions.open(session("bob", 5), 5)
    with pytest.raises(RateLimitedError):
        desk.sessions.open(session("carol", 6), 6)
    desk.sessions.close()
    assert len(desk.sessions) == 0


# Configuration


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"host": "0.0.0.0"}, "which needs TLS"),
        ({"certificate": "x.pem"}, "require each other"),
        ({"admin_url": "http://x"}, "is not an address"),
        ({"agents": ("nowhere",)}, "is not an address"),
        ({"port": 70_000}, "65535"),
    ],
)
def test_invalid_configurations_are_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        ConsoleConfig(**values)
    assert what in str(error.value)


def test_a_plant_has_a_console_by_default(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text('name = "trial"\n[[administration]]\nname = "a"\npolicy = "p.toml"\nport = 7499\n')
    config = Plant.load(path).console()
    assert (config.port, config.admin_url) == (7430, "penstock://127.0.0.1:7499")
    path.write_text(path.read_text() + '[[console]]\nname = "mine"\nport = 7431\nlimits = { idle_s = 60 }\n')
    config = Plant.load(path).console()
    assert (config.name, config.port, config.limits.idle_s) == ("mine", 7431, 60)
    assert Plant.load(path).page("mine") == "http://127.0.0.1:7431"


def test_the_page_policy_allows_no_inline_code() -> None:
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


# The graph


def status(name: str, kind: str, **values: Any) -> NodeStatus:
    standard: dict[str, Any] = {
        "name": name, "kind": kind, "control_port": 7410, "epoch": 1, "is_in_touch": True, "is_fed": True, "items": 9,
        "updates": 100, "consumer_count": 0, "consumers": [],
    }  # fmt: skip
    return NodeStatus(**{**standard, **values})


def pictured(plant: Plant, statuses: dict[str, Status | None]) -> PictureDocument:
    """A graph with these status answers; the other nodes do not answer."""
    readings = []
    for place in places_of_plant(plant):
        at = Place(place.name, "127.0.0.1", 1, place.role)
        if place.name in statuses:
            readings.append(Reading(at, NS_PER_SECOND, role=place.role, status=statuses[place.name], uptime_s=1.0))
        else:
            readings.append(Reading(at, NS_PER_SECOND, "unreachable", "refused"))
    picture = Watch().take(readings, NS_PER_SECOND)
    return Topology(plant).document(picture, readings, number=1, time_ms=5.0, interval_s=1.0)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    path = tmp_path / "plant.toml"
    path.write_text(PLANT)
    return Plant.load(path)


def test_edges_show_the_direction_and_whether_data_flows(plant: Plant) -> None:
    document = pictured(
        plant, {"records": status("records", "plant"), "mux": status("mux", "mux", is_fed=False), "console": None}
    )
    links = {(each.source, each.target): (each.kind, each.state) for each in document.links}
    assert links == {("records", "mux"): ("records", "down"), ("mux", "screens"): ("records", "down")}
    assert not document.is_well
    assert {node.node: node.state for node in document.nodes}["screens"] == State.UNREACHABLE
    well = pictured(
        plant,
        {
            "records": status("records", "plant"),
            "mux": status("mux", "mux"),
            "screens": status("screens", "edge"),
            "console": None,
        },
    )
    assert {each.state for each in well.links} == {"up"}
    assert well.is_well


def test_a_message_router_shows_its_role_and_its_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text('name = "trial"\n[[router]]\nname = "orders"\nmetrics_port = 7999\n')
    info = EndpointInfo(EndpointConfig(name="new"), messages=3, bytes=30, unsettled=1, flows=1)
    said = RouterStatus(
        name="orders", kind="router", role="standby", epoch=4, control_port=7460, clients=0, is_storing=True,
        is_in_touch=True, endpoints=[info], happenings=[],
    )  # fmt: skip
    document = pictured(Plant.load(path), {"orders": said})
    (node,) = [each for each in document.nodes if each.role == "router"]
    assert (node.state, node.place) == (State.UP, "standby, epoch 4")
    assert [(row.node, row.endpoint, row.messages, row.flows) for row in document.endpoints] == [
        ("orders", "new", 3, 1)
    ]
    assert document.counts["endpoints"] == 1


def test_a_pair_of_routers_shows_its_replication_and_its_witness(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(
        'name = "trial"\n[[router]]\nname = "orders"\nmetrics_port = 7999\n'
        '[[witness]]\nname = "tower"\nrouters = ["orders", "other"]\nmetrics_port = 7998\n'
    )
    router = RouterStatus(
        name="orders", kind="router", role="active", epoch=4, control_port=7460, clients=0, is_storing=True,
        is_in_touch=True, endpoints=[], happenings=[],
        replication=Replication("other", "in step", 0, is_linked=True, is_ordered=False, backlog=0),
    )  # fmt: skip
    witness = WitnessStatus(
        name="tower", kind="witness", epoch=4, holder="orders", bound_to="orders", alone="",
        routers=("orders", "other"), in_touch=["orders", "other"], control_port=7470, is_storing=True,
    )  # fmt: skip
    document = pictured(Plant.load(path), {"orders": router, "tower": witness})
    assert [(node.role, node.place) for node in document.nodes] == [
        ("router", "active, epoch 4, in step"),
        ("witness", "epoch 4, held by orders"),
    ]


def test_the_document_has_the_fields_that_pages_read(plant: Plant) -> None:
    document = msgspec.json.decode(msgspec.json.encode(pictured(plant, {"records": status("records", "plant")})))
    assert document["kind"] == "picture"
    assert document["links"][0].keys() == {"from", "to", "kind", "state", "per_s"}
    assert {"node", "role", "state", "age_s", "group", "place", "parent", "actions"} <= document["nodes"][0].keys()
    assert document["counts"]["nodes"] == 4
    assert len(document["streams"]) <= ROWS_MAX


def operator(**values: Any) -> Operator:
    return Operator(**{"client": "boss", "is_administrator": True, "can_control": True, **values})


def test_an_action_that_would_be_refused_comes_with_the_reason(plant: Plant) -> None:
    node = pictured(plant, {"records": status("records", "plant")}).nodes[0]
    assert with_actions(node, operator()).actions == ("kill",)
    assert with_actions(node, operator()).refused_actions == {}
    here = with_actions(node, operator(can_control=False))
    assert here.actions == ()
    assert "`penstock up`" in here.refused_actions["kill"]
    clerk = with_actions(node, operator(is_administrator=False))
    assert (clerk.actions, clerk.refused_actions) == ((), {"kill": "needs the role administrator"})
    gone = with_actions(pictured(plant, {}).nodes[0], operator())
    assert (gone.actions, gone.refused_actions) == ((), {"kill": "records does not answer"})


@pytest.mark.parametrize(
    ("values", "actions", "refused"),
    [
        ({"role": "adapter", "place": "backup"}, ("kill", "promote"), {}),
        ({"role": "adapter", "place": "active"}, ("kill",), {"promote": "n is the active adapter"}),
        (
            {"role": "adapter", "place": "backup", "state": State.DEGRADED},
            ("kill",),
            {"promote": "n is not synchronised"},
        ),
        ({"role": "agent", "place": "root"}, ("kill",), {}),
        ({"role": "agent", "place": "standby"}, ("kill", "promote"), {}),
        ({"role": "agent", "place": "leaf", "parent": "mid"}, ("kill", "move", "return"), {}),
        (
            {"role": "agent", "place": "leaf"},
            ("kill",),
            dict.fromkeys(("move", "return"), "n has no parent at present"),
        ),
        (
            {"role": "agent", "place": "leaf", "parent": "other"},
            ("kill",),
            dict.fromkeys(("move", "return"), "other accepts no orders of boss (its key `operators`)"),
        ),
        (
            {"role": "agent", "place": "leaf", "parent": "mid", "state": State.FAILED},
            ("kill",),
            dict.fromkeys(("move", "return"), "n is failed"),
        ),
    ],
)
def test_actions_of_each_kind_of_node(
    plant: Plant, values: dict[str, Any], actions: tuple[str, ...], refused: dict[str, str]
) -> None:
    node = pictured(plant, {"records": status("records", "plant")}).nodes[0]
    node = msgspec.structs.replace(node, node="n", **{"state": State.UP, **values})
    shown = with_actions(node, operator(accepted_by=lambda agent: agent != "other"))
    assert (shown.actions, shown.refused_actions) == (actions, refused)
