"""Invalid rates are refused before a request is sent; the request goes to a node that serves the class."""

import math

import pytest

from penstock.base.errors import ConfigurationError
from penstock.engine.client import discovery, open_messages
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, 1e13])
def test_invalid_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="is not a rate"):
        open_messages("127.0.0.1:1", "md.>", cls="metered", per_second=rate)


def test_a_metered_subscription_goes_to_a_node_that_serves_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(discovery.VARIABLE, raising=False)
    monkeypatch.setattr(discovery, "answers", lambda address: True)
    assert discovery.find_node(cls="metered") == ("127.0.0.1", EDGE_PORT_DEFAULT)
    assert discovery.find_node(cls="critical") == ("127.0.0.1", MUX_PORT_DEFAULT)
