"""Damaged model documents and records: a clear error or a value, nothing else."""

import random

import pytest

from penstock.base.errors import ConfigurationError, ModelError
from penstock.model import MessageModel, shipped, shipped_names
from penstock.model.library import DIRECTORY

WORDS = [
    "= 1",
    "[[field]]",
    "{n}",
    "repeat",
    "size = 9",
    "since = 2",
    '"',
    "-1",
    "99999999999",
    "é",
    "\0",
    "part",
    "]",
    "true",
]


def mutated(text: str, source: random.Random) -> str:
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(text) + 1)
        kind = source.randrange(4)
        if kind == 0:
            text = text[:at] + source.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + source.randint(1, 40) :]
        elif kind == 2:
            text = text[:at] + chr(source.randrange(1, 300)) + text[at + 1 :]
        else:
            line = source.choice(text.splitlines() or [""])
            text = text[:at] + "\n" + line + "\n" + text[at:]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_mutated_documents(seed: int, soak: bool) -> None:
    source = random.Random(seed)
    texts = [(DIRECTORY / f"{name}.toml").read_text() for name in shipped_names()]
    for _ in range(20_000 if soak else 150):
        try:
            model = MessageModel.parse(mutated(source.choice(texts), source), "fuzz")
        except (ConfigurationError, ModelError):
            continue
        model.new().to_json()
        model.spark_schema()


@pytest.mark.parametrize("name", shipped_names())
def test_records_of_random_bytes(name: str, soak: bool) -> None:
    source = random.Random(name)
    model = shipped(name)
    for _ in range(5_000 if soak else 100):
        data = source.randbytes(source.randrange(model.record_size + 20))
        try:
            message = model.view(data, source.choice([None, 1, 2, 65_535]))
        except ModelError:
            continue
        message.to_dict()
        repr(message)
        message.to_json().encode()


@pytest.mark.parametrize("seed", range(4))
def test_mutated_json(seed: int, soak: bool) -> None:
    source = random.Random(seed)
    text = shipped("quote").new(symbol="IBM", bid_price="12.5").to_json()
    for _ in range(20_000 if soak else 300):
        try:
            shipped("quote").from_json(mutated(text, source))
        except ModelError:
            continue
