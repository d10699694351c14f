"""Entitlements in a plant of real processes: taken away at run time, sealed, delayed."""

from pathlib import Path

import pytest

from integration.plant_kit import MARKET, PlantOptions, TestPlant
from penstock.base.errors import RefusedError, RevokedError


@pytest.mark.spec("ADM-5", "SUB-4")
def test_what_is_revoked_ends_on_multicast_and_tcp_and_says_why(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions()) as plant:
        plant.start()
        alice, bob = plant.connect("alice"), plant.connect("bob")
        streams = [plant.read(alice.subscribe(MARKET, transport=each)) for each in ("multicast", "tcp")]
        other = plant.read(bob.subscribe(MARKET, transport="tcp"))
        plant.until(lambda: all(each.messages for each in [*streams, other]), "messages")
        for stream in streams:
            stream.is_end_expected = True
        answer = plant.administrator().revoke("alice", "left the firm")
        assert len(answer.subscriptions) == 2
        plant.until(lambda: all(each.is_over for each in streams), "the end of both streams")
        for stream in streams:
            assert isinstance(stream.error, RevokedError)
            assert "left the firm" in str(stream.error)
        with pytest.raises(RevokedError, match="left the firm"):
            alice.subscribe(MARKET)
        plant.settle(other)
        other.check_complete()
