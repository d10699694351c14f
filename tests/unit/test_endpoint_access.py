"""Who can reach the page of a node."""

import pytest

from penstock.base.endpoint import Endpoint, Health
from penstock.base.errors import ConfigurationError
from penstock.base.metrics import Metrics


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_a_page_beyond_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="neither TLS nor a token"):
        Endpoint(Metrics(), lambda: Health(True), host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_page_on_this_machine_is_served(host: str) -> None:
    Endpoint(Metrics(), lambda: Health(True), host=host).stop()
