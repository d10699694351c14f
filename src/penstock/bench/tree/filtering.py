"""Savings of a filter: bytes from the root to an intermediate agent whose subscribers want little."""

import asyncio
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.bench.harness import Result, result
from penstock.bench.transports import check, other_process
from penstock.bench.tree.party import BareParty, run_party
from penstock.bench.tree.process import running_chain
from penstock.bench.tree.rate import PUBLISHER, topic_of
from penstock.model.library import shipped
from penstock.tree.core.infostream import id_of
from penstock.tree.core.kernel._frame import KIND_PUBLISHED, encode_block, split_packets
from penstock.tree.core.kernel._number import encode_published

MESSAGES = 20_000
WANTED_EACH = 100
MODEL = "trade"
WHERE = f"quantity = {WANTED_EACH}"
CONDITIONS = (
    f"{MESSAGES} records of the model `{MODEL}`; a subscriber two agents below the root, where = '{WHERE}', which one "
    f"message in {WANTED_EACH} matches; all bytes from the root to the agent below it, divided by those without the "
    "filter"
)


def run() -> Iterator[Result]:
    sent = {}
    for where in ("", WHERE):
        with tempfile.TemporaryDirectory() as folder:
            sent[where] = _bytes(Path(folder), where)
    yield result(
        "tree",
        "filter_bytes_ratio",
        sent[WHERE] / sent[""],
        "ratio",
        against=f"no filter: {sent['']} bytes, with it {sent[WHERE]}",
        against_value=1,
        conditions=CONDITIONS,
    )


def _bytes(folder: Path, where: str) -> int:
    wanted = MESSAGES // WANTED_EACH if where else MESSAGES
    with (
        running_chain(folder, "middle", "leaf") as agents,
        other_process(_subscribe, agents[-1].place, where, wanted) as subscriber,
        other_process(_publish, agents[0].place) as publisher,
    ):
        check(subscriber.recv() == "ready" and publisher.recv() == "ready", "the parties did not start")
        before = agents[0].bytes_out("agent")
        publisher.send("go")
        check(subscriber.recv() == wanted, "messages are missing")
        check(publisher.recv() == "sent", "the publisher failed")
        return agents[0].bytes_out("agent") - before


def _publish(place: str, orders: Connection) -> None:
    run_party(_publish_records(place, orders))


async def _publish_records(place: str, orders: Connection) -> None:
    party = BareParty(PUBLISHER, "publisher")
    await party.connect(place)
    model, publisher_id = shipped(MODEL), id_of(PUBLISHER)
    packets = [
        encode_published(
            publisher_id,
            number,
            0,
            topic_of(number),
            bytes(model.new(quantity=number % WANTED_EACH + 1)),
            model_id=model.id,
            model_version=model.version,
        )
        for number in range(1, MESSAGES + 1)
    ]
    orders.send("ready")
    orders.recv()
    for packet in packets:
        await party.write(encode_block(packet, kind=KIND_PUBLISHED))
        await asyncio.sleep(0)
    while party.through < MESSAGES:
        await asyncio.sleep(0.01)
    orders.send("sent")
    await party.close()


def _subscribe(place: str, where: str, wanted: int, orders: Connection) -> None:
    run_party(_count(place, where, wanted, orders))


async def _count(place: str, where: str, wanted: int, orders: Connection) -> None:
    count = 0
    done = asyncio.Event()

    def taken(packets: bytes) -> None:
        nonlocal count
        count += sum(1 for each in split_packets(packets) if each[24:28] != bytes(4))
        if count >= wanted:
            done.set()

    party = BareParty("subscriber", "subscriber", taken)
    await party.connect(place)
    await party.subscribe(where=where)
    orders.send("ready")
    await asyncio.wait_for(done.wait(), 60)
    orders.send(count)
    await party.close()
