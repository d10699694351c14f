"""The ports and groups of a plant that the demo or `penstock init` writes."""

from typing import Annotated

import msgspec

from penstock.net.udp import Channel, free_channel, free_ports

FIRST_DEFAULT = 7_400
"""The first port of a plant made by `penstock init`; its nodes then listen at their documented default ports."""

PORTS = 100
"""Size of the range that such a plant uses."""

FirstPort = Annotated[int, msgspec.Meta(ge=1_024, le=65_536 - PORTS)]


class Ports(msgspec.Struct, frozen=True):
    """Where each node listens. All addresses are 127.0.0.1."""

    admin: int
    filter: int
    nodes: list[int]
    """Ports of the ticker plant, the multiplexer and the edge cache."""

    websocket: int
    """WebSocket port of the edge cache."""

    request: int
    """Port of the exchange for repair requests."""

    peers: list[int]
    """Ports of the feed adapters."""

    services: list[int]
    """Of the feed adapters: streams over TCP, in a plant on two hosts. On one host any free port is used."""

    agents: list[int]
    """Ports of the tree's agents, the root first."""

    console: int
    routers: list[int]
    link: int
    """Port of the link between the routers."""

    voters: list[int]
    """Ports of the routers and the witness for votes."""

    lines: list[Channel]
    """Channels of the exchange's lines."""

    published: list[Channel]
    """Channels of the feed adapters."""

    publishing: int
    """Port of the groups of clients' publishers."""

    @staticmethod
    def free() -> "Ports":
        """Ports and groups that are currently free."""
        ports = iter(free_ports(24))

        def take(count: int) -> list[int]:
            return [next(ports) for _ in range(count)]

        return Ports(
            admin=next(ports),
            filter=next(ports),
            nodes=take(3),
            websocket=next(ports),
            request=next(ports),
            peers=take(2),
            services=take(2),
            agents=take(5),
            console=next(ports),
            routers=take(2),
            link=next(ports),
            voters=take(3),
            lines=[free_channel(), free_channel()],
            published=[free_channel(), free_channel()],
            publishing=next(ports),
        )

    @staticmethod
    def documented(first: int = FIRST_DEFAULT) -> "Ports":
        """The ports that the documentation uses, moved so that the administration server listens at `first`."""

        def channel(number: int) -> Channel:
            return Channel(group=f"239.255.74.{number}", port=first + number)

        return Ports(
            admin=first,
            filter=first + 2,
            nodes=[first + 10, first + 11, first + 12],
            websocket=first + 13,
            request=first + 15,
            peers=[first + 16, first + 17],
            services=[first + 18, first + 19],
            agents=[first + 20 + number for number in range(5)],
            console=first + 30,
            routers=[first + 60, first + 61],
            link=first + 65,
            voters=[first + 70, first + 71, first + 72],
            lines=[channel(41), channel(42)],
            published=[channel(43), channel(44)],
            publishing=first + 45,
        )
