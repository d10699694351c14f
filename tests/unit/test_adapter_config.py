"""The configuration of an adapter."""

import pytest

from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import LineAddress, SourceStreamConfig
from penstock.feed.formats import MoldUDP64, register_datagram_format


class Toy(MoldUDP64):
    name = "toy"


@pytest.mark.usefixtures("own_formats")
@pytest.mark.spec("FEED-2", "FEED-7")
def test_a_custom_framing_is_accepted_by_name() -> None:
    lines = (LineAddress(port=7_000),)
    with pytest.raises(ConfigurationError, match="'toy'") as refused:
        SourceStreamConfig(id=1, name="s", framing="toy", lines=lines).check_framing()
    assert "moldudp64, iextp, soupbintcp, file, contribution" in str(refused.value)
    register_datagram_format(Toy())
    SourceStreamConfig(id=1, name="s", framing="toy", lines=lines).check_framing()
    with pytest.raises(ConfigurationError, match="does not match the other keys"):
        SourceStreamConfig(id=1, name="s", framing="toy")
