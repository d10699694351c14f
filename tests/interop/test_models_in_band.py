"""Decodes a model in band with independent code, written from protocol/packet.md and models.md alone."""

import tomllib

import pytest

from interop.packet_decoder import decode
from penstock.feed.core.models_in_band import ModelsInBand
from penstock.feed.live.outbound import Outbound
from penstock.middleware import Publisher, PublisherConfig
from penstock.model import shipped
from penstock.net.udp import Channel

CONTINUATION, MORE = 1, 2


@pytest.mark.spec("ADM-6")
def test_a_stream_starts_with_its_models() -> None:
    models = [shipped("quote"), shipped("status"), shipped("trade")]
    outbound = Outbound(Publisher(7, 1, PublisherConfig()), Channel(), None, now_ns=0, models=ModelsInBand(models, 10))
    outbound.tick(1)
    store = outbound.cursor.kept
    packets = [decode(store.get(sequence)) for sequence in range(1, store.next_sequence)]
    messages = [message for packet in packets for message in packet.messages]
    assert {message.flags & (CONTINUATION | MORE) for message in messages} == {CONTINUATION, MORE}
    contents: list[bytes] = []
    for message in messages:
        assert (message.topic, message.model_id, message.model_version) == ("penstock.model", 0, 0)
        assert message.extensions == {}
        if message.flags & CONTINUATION:
            contents[-1] += message.payload
        else:
            contents.append(message.payload)
    documents = [tomllib.loads(content.decode()) for content in contents]
    assert [(each["id"], each["name"]) for each in documents] == [(model.id, model.name) for model in models]
