"""An administration server for one test, and the session of a feed adapter there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from admin_kit import config, credentials
from penstock.admin.live.driver import AdminServer
from penstock.security.live.client import AdminClient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with AdminServer(config(tmp_path)) as server:
        yield server


@pytest.fixture
def feed(server: AdminServer) -> Iterator[AdminClient]:
    with AdminClient.connect(server.url, credentials("feed")) as client:
        yield client
