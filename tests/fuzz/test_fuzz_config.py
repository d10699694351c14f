"""Damaged configuration: a value, or a ConfigurationError that names the document."""

import random

import pytest

from penstock.base.config import parse_toml
from penstock.base.errors import ConfigurationError
from penstock.middleware import PublisherConfig, ReceiverConfig

WORDS = ["=", "[", "]]", '"', "'", "nack", "join", ".", "1e999", "-1", "true", "\n", "{", "}", "\0", "0x", "nan", "é"]
GOOD = 'nack = "multicast"\njoin = "start"\nnack_retry_ms = 20\nwindow_packets_max = 100\n'


@pytest.mark.parametrize("kind", [PublisherConfig, ReceiverConfig])
def test_mutated_documents(kind: type, soak: bool) -> None:
    chance = random.Random(kind.__name__)
    refused = list[str]()
    for _ in range(50_000 if soak else 2_000):
        text = GOOD
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(WORDS) + text[at + chance.randint(0, 6) :]
        try:
            assert isinstance(parse_toml(text, kind, where="fuzz.toml"), kind)
        except ConfigurationError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(sentence.startswith("fuzz.toml: ") for sentence in refused)
