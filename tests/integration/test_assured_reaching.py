"""Connections between message routers and their clients, and the errors without a connection."""

import asyncio
import ssl
from pathlib import Path
from typing import Any, cast

import pytest

from integration.assured_kit import router_config, router_here
from penstock.assured.client import open_assured
from penstock.assured.node_config import RouterAccess
from penstock.assured.wire.control import ASSURED
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, NoSuchHostError, UnreachableError
from penstock.net.config import ControlConfig
from penstock.net.live.link import connect_link
from penstock.net.secret import Secret


def test_a_port_that_another_has_is_found_before_the_router_is_active(tmp_path: Path) -> None:
    with router_here(router_config(tmp_path / "one")) as router:
        port = router.router.control_port
        config = router_config(tmp_path / "two", control=RouterAccess(port=port))
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"), router_here(config):
            pass
        assert not (tmp_path / "two" / "journal").exists()


def test_why_no_router_can_be_reached_is_said_at_once() -> None:
    """Without TLS and a secret no connection leaves this host, so another attempt cannot succeed."""
    with open_assured("routers.example:7460", answer_seconds=3_600) as client:
        with pytest.raises(UnreachableError, match="needs TLS and a secret"):
            client.publisher()
        with pytest.raises(UnreachableError, match="needs TLS and a secret"):
            client.endpoints()


def test_a_name_that_is_none_is_no_host() -> None:
    async def dialled() -> None:
        await connect_link(
            ASSURED,
            "x" * 70,
            7_460,
            cast(Any, None),
            node="client",
            secret=Secret(bytes(32)),
            tls=ssl.create_default_context(),
            config=ControlConfig(),
            counters=Counters("test"),
        )

    with pytest.raises(NoSuchHostError, match="unknown host"):
        asyncio.run(dialled())
