"""A consumer in a process of its own that keeps its region mapped, and prints the region's content for each line of
input.

Arguments: the node's port, a name, a token, topics. The process prints "mapped" when it has a region with records.
"""

import sys

from integration.distribution_kit import Consumer
from penstock.model import shipped
from penstock.net.live.handover import receive_segment
from penstock.shm import RegionReader
from waiting import wait_until


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    port, name, token, *topics = sys.argv[1:]
    model = shipped("quote")
    with Consumer(int(port), name, token=token) as consumer:
        consumer.attached().subscribe(*topics, cls="adaptive")
        wait_until(lambda: consumer.regions, "a region")
        opened = consumer.regions[-1]
        segment = receive_segment(consumer.welcomes[0].path, opened.segment)
        with segment, RegionReader(segment, model) as region:
            kept: dict[int, int] = {}

            def numbers() -> list[int]:
                for slot in range(opened.record_count):
                    if (record := region.read(slot)) is not None:
                        kept[slot] = record.message.source_seq
                return sorted(kept.values())

            wait_until(numbers, "records")
            say("mapped")
            for line in sys.stdin:
                if line.startswith("renew "):
                    consumer.run(consumer.link.renew(line.split()[1]))
                say(" ".join(map(str, numbers())))


if __name__ == "__main__":
    main()
