"""Parts of the client that work without a plant: models and the gate."""

import subprocess
import sys
from pathlib import Path

import pytest

from client_kit import QUOTE, content
from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, NotFoundError
from penstock.capture.core.message_reader import UnreadMessage
from penstock.capture.live.reading import Models
from penstock.client.batch import Batch
from penstock.client.gate import SEALED, Gate
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.model import Message, MessageModel
from penstock.security import Entitlement, Grant
from penstock.wire import PacketMessage

SPREAD = """
id = 900
name = "spread"
version = 1
[[field]]
name = "width"
type = "i64"
"""
SPREAD_2 = SPREAD.replace("version = 1", "version = 2") + '[[field]]\nname = "depth"\ntype = "i64"\nsince = 2\n'
WIDTH_7 = bytes(MessageModel.parse(SPREAD).new(width=7))


def nobody(model_id: int, version: int) -> MessageModel:
    raise NotFoundError(f"no model {model_id}")


def spread(version: int = 1, payload: bytes = WIDTH_7) -> PacketMessage:
    return PacketMessage("md.x", payload, 900, version)


@pytest.mark.spec("ADM-6")
def test_a_model_is_requested_once() -> None:
    asked = []

    def ask(model_id: int, version: int) -> MessageModel:
        asked.append((model_id, version))
        return MessageModel.parse(SPREAD)

    models = Models(ask)
    assert [models.read(spread()).width for _ in range(3)] == [7, 7, 7]  # type: ignore[union-attr]
    assert asked == [(900, 1)]


@pytest.mark.spec("ADM-6")
def test_a_newer_version_is_requested_and_the_older_one_reads_its_messages_until_then() -> None:
    known = [MessageModel.parse(SPREAD)]
    models = Models(lambda model_id, version: known[-1])
    models.read(spread())
    newer = MessageModel.parse(SPREAD_2).new(width=3, depth=4)
    message = models.read(spread(2, bytes(newer)))
    assert isinstance(message, Message)
    assert (message.width, message.version, message.model.version) == (3, 2, 1)
    models.learn(MessageModel.parse(SPREAD_2))
    assert models.read(spread(2, bytes(newer))).depth == 4  # type: ignore[union-attr]
    assert models.read(spread()).depth is None  # type: ignore[union-attr]


@pytest.mark.spec("ADM-6")
def test_a_model_in_band_is_accepted_unless_it_contradicts() -> None:
    models, counters = Models(nobody), Counters("client")
    gate = Gate([">"], None, models, counters)
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    assert isinstance(models.read(spread()), UnreadMessage)
    assert not gate.passes(PacketMessage(MODEL_TOPIC, SPREAD.encode()))
    assert models.read(spread()).width == 7  # type: ignore[union-attr]
    for bad in (b"\xff", b"id = ", SPREAD_2.replace('"width"', '"height"').encode()):
        gate.passes(PacketMessage(MODEL_TOPIC, bad))
    assert models.read(spread()).width == 7  # type: ignore[union-attr]


def test_a_record_that_is_too_short_is_invalid() -> None:
    models = Models(lambda model_id, version: MessageModel.parse(SPREAD))
    with pytest.raises(ModelError):
        models.read(spread(1, b"1234"))


@pytest.mark.spec("SUB-4")
def test_the_gate_applies_delays() -> None:
    counters = Counters("client")
    gate = Gate(["md.>", "!md.us.>"], None, Models(nobody), counters)
    gate.allow(Entitlement([Grant("md.uk.>", "receive", 900), Grant("md.us.>", "receive")]), 0)
    assert not gate.passes(PacketMessage("md.uk.x", b"", QUOTE.id, 1))
    assert counters.by_cause("messages_dropped") == {Cause.REFUSED: 1}
    assert not gate.passes(PacketMessage("md.us.x", b"", QUOTE.id, 1))
    gate.want(["md.>"])
    gate.allow(Entitlement([Grant("md.uk.>", "receive", 900), Grant("md.us.>", "receive")]), 900)
    assert gate.passes(PacketMessage("md.uk.x", b"", QUOTE.id, 1))
    assert not gate.passes(PacketMessage("md.us.x", b"", QUOTE.id, 1))  # another grant has no delay
    assert counters.by_cause("messages_dropped") == {Cause.REFUSED: 1}


@pytest.mark.spec("ADM-7", "SUB-4")
def test_a_sealed_multicast_stream_delivers_no_unsealed_message() -> None:
    models, counters = Models(nobody), Counters("client")
    gate = Gate([">"], None, models, counters)
    gate.allow(Entitlement([Grant(">", "receive")]), 0)
    gate.requires_seal = True
    quote = PacketMessage("md.us.x", content(1), QUOTE.id, QUOTE.version)
    assert not gate.passes(quote)
    assert not gate.passes(PacketMessage(MODEL_TOPIC, SPREAD.encode()))
    assert gate.passes(PacketMessage("md.us.x", b"", QUOTE.id, 1, SEALED))
    assert gate.passes(quote, by_service=True)
    assert isinstance(models.read(spread()), UnreadMessage)
    assert counters.by_cause("messages_dropped") == {Cause.AUTHENTICATION: 2}


def test_a_batch_of_several_models_names_them() -> None:
    models = Models(nobody)
    models.learn(MessageModel.parse(SPREAD))
    quotes = [PacketMessage("md.x", content(number), QUOTE.id, QUOTE.version) for number in (1, 2)]
    batch = Batch([*quotes, spread()], models)
    assert {model.name: len(records) for model, records in batch.records.items()} == {"quote": 2, "spread": 1}
    with pytest.raises(ModelError):
        batch.arrow()
    assert batch.arrow(QUOTE).num_rows == 2


def test_importing_the_package_loads_no_client_module(project: Path) -> None:
    script = "import penstock, sys; assert 'penstock.client' not in sys.modules and 'numpy' not in sys.modules;"
    script += "penstock.connect; assert 'penstock.client' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=project, timeout=60)
