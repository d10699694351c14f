"""A host on the segment without a key, as a process of its own: forges packets of a feed's publisher.

    python -m integration.forger ATTACK GROUP PORT PUBLISHER_ID

It sends the forged packets again and again until its input ends, and prints the number of rounds after each round.
"""

import socket
import sys
import threading

from client_kit import QUOTE, STREAM_ID, TERM, originated
from penstock.base.ids import parse_group
from penstock.base.limits import EPOCH_MAX
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import DiscontinuityNote
from penstock.security import Sealer
from penstock.security.core.sealing import StreamKey
from penstock.wire import (
    Extension,
    Origin,
    OriginFlag,
    Packer,
    PacketFlag,
    encode_extensions,
    encode_gone,
    encode_origin,
)

TOPIC = "md.us.eq.AAPL.quote"
FORGED_NUMBERS = range(1, 40)
HIGH_TERM = 1 << 30


def packet(
    publisher_id: int, group: int, sequence: int, number: int, *, epoch: int = 1, sealer: Sealer | None = None
) -> bytes:
    """A quote of message `number` in packet `sequence`."""
    extensions, payload, flags = originated(
        TOPIC, number, TERM, int(OriginFlag.SYNCHRONISED), QUOTE, sealer, ask_size=666
    )
    packer = Packer(publisher_id, group, epoch, first_sequence=sequence)
    packer.add(TOPIC, payload, model_id=QUOTE.id, model_version=QUOTE.version, flags=flags, extensions=extensions)
    return packer.flush() or b""


def discontinuity(publisher_id: int, group: int, sequence: int) -> bytes:
    flags = int(OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY)
    origin = encode_origin(Origin(STREAM_ID, HIGH_TERM, 0, flags, 1, 1_000_000))
    packer = Packer(publisher_id, group, 1, first_sequence=sequence)
    extensions = encode_extensions({Extension.ORIGIN: origin})
    packer.add(DISCONTINUITY_TOPIC, DiscontinuityNote("failover").encode(), extensions=extensions)
    return packer.flush() or b""


def forgeries(attack: str, publisher_id: int, group: int) -> list[bytes]:
    stream = (publisher_id, group)
    if attack == "next":
        return [packet(*stream, number, number) for number in FORGED_NUMBERS]
    if attack == "far":
        return [packet(*stream, sequence, 1) for sequence in (2**63, 2**63 - 1, 1_000_000)]
    if attack == "discontinuity":
        return [discontinuity(*stream, sequence) for sequence in FORGED_NUMBERS]
    if attack == "sealed":
        sealer = Sealer(StreamKey("itch", 4_000_000, bytes(32)), publisher_id, 1)
        return [packet(*stream, number, number, sealer=sealer) for number in FORGED_NUMBERS]
    if attack == "epoch":
        return [packet(*stream, 1, 1, epoch=EPOCH_MAX)]
    if attack == "end":
        goodbyes = [
            Packer(*stream, 1, first_sequence=number).empty(PacketFlag.GOODBYE | PacketFlag.KEEP_ALIVE)
            for number in FORGED_NUMBERS
        ]
        return [*goodbyes, encode_gone(*stream, 1, [(1, 1_000)])]
    raise SystemExit(f"no attack is called {attack!r}")


def main() -> None:
    attack, group, port, publisher_id = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    datagrams = forgeries(attack, publisher_id, parse_group(group))
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        rounds = 0
        while not is_over.is_set():
            for each in datagrams:
                sending.sendto(each, (group, port))
            rounds += 1
            sys.stdout.write(f"{rounds}\n")
            sys.stdout.flush()
            is_over.wait(0.002)


if __name__ == "__main__":
    main()
