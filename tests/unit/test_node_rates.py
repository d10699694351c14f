"""Rates that are none are refused before any node is asked; the node that is asked suits the class."""

import math

import pytest

from penstock.base.errors import ConfigurationError
from penstock.engine.client import discovery, open_messages
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, 1e13])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="is not a rate"):
        open_messages("127.0.0.1:1", "md.>", cls="metered", per_second=rate)


def test_the_metered_class_is_looked_for_where_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(discovery.VARIABLE, raising=False)
    monkeypatch.setattr(discovery, "answers", lambda address: True)
    assert discovery.find_node(cls="metered") == ("127.0.0.1", EDGE_PORT_DEFAULT)
    assert discovery.find_node(cls="critical") == ("127.0.0.1", MUX_PORT_DEFAULT)
