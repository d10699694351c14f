"""The client by way of a filter module: everything that test_client.py shows holds as well."""

from collections.abc import Iterator

import pytest

from integration.filter_kit import FilterHere, filter_here
from integration.test_client import *  # noqa: F403


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilterHere]:
    with filter_here() as module:
        monkeypatch.setenv("PENSTOCK_FILTER", f"127.0.0.1:{module.port}")
        yield module
