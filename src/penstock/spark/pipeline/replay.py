"""Replay: what was recorded goes to live subscribers again, on its topics, with its numbers, at its pace or faster.

    chosen = Chosen(from_ns, to_ns, topics=["md.us.eq.AAPL.>"])
    with MulticastPublisher(channel, config=REPLAYING) as publisher:
        played = replay(plays_of_archive(archive, chosen), publisher, speed=10.0)

Every packet has the mark REPLAY, under a publisher id and epoch of the replay's own; receivers refuse it unless they
were told to accept it, and it is never merged with what is live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from penstock.middleware import OutgoingMessage, PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.spark.pipeline.playing import Pace, Play

REPLAYING = PublisherConfig(
    is_replay=True, retransmission_packets_max=262_144, retransmission_bytes_max=512 * 1024 * 1024
)
"""Much is kept for repairs, since what is played at full speed overtakes subscribers."""

PACK_MAX = 2_048
"""Messages handed to the publisher at once."""

SIZE_MAX = 1_024
"""Bytes of a message that is packed with others; longer ones may have to be cut."""

WAIT_SECONDS_MAX = 0.05


class Played(msgspec.Struct):
    """How far a replay came."""

    messages: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0
    late_ns_max: int = 0
    """How far behind its pace it was at most."""


def replay(
    plays: Iterator[Play],
    publisher: MulticastPublisher,
    *,
    speed: float,
    is_wanted: Callable[[], bool] = lambda: True,
    on_progress: Callable[[Played], None] = lambda played: None,
) -> Played:
    """Publish it all; a speed of 1 as it was, of 0 as fast as it can be sent. It ends early when it is not wanted."""
    played = Played()
    pace: Pace | None = None
    for play in plays:
        if pace is None:
            played.first_time_ns = int(play.times_ns[0])
            pace = Pace(speed, time.monotonic_ns(), played.first_time_ns)
        done = 0
        while done < len(play):
            if not is_wanted():
                return played
            now_ns = time.monotonic_ns()
            due = min(pace.due(play.times_ns[done:], now_ns), PACK_MAX)
            if due == 0:
                wait_ns = pace.wait_ns(int(play.times_ns[done]), now_ns)
                time.sleep(min(wait_ns / 1e9, WAIT_SECONDS_MAX))
                continue
            _publish(publisher, play.select(slice(done, done + due)))
            played.late_ns_max = max(played.late_ns_max, pace.late_ns(int(play.times_ns[done]), now_ns))
            done += due
            played.messages += due
            played.last_time_ns = int(play.times_ns[done - 1])
            on_progress(played)
    return played


def _publish(publisher: MulticastPublisher, play: Play) -> None:
    """Packed; a long message goes alone, in its place."""
    sizes = play.rows["payload_size"].astype(np.int64) + play.rows["extensions_size"] + play.rows["topic_size"]
    start = 0
    for place in np.flatnonzero(sizes > SIZE_MAX).tolist():
        if place > start:
            publisher.publish_batch(play.select(slice(start, place)))
        publisher.publish_messages([_message(play, place)])
        start = place + 1
    if start < len(play):
        publisher.publish_batch(play if start == 0 else play.select(slice(start, None)))


def _message(play: Play, index: int) -> OutgoingMessage:
    row = play.rows[index]
    topic, payload, extensions = (
        data[int(row[f"{name}_offset"]) : int(row[f"{name}_offset"]) + int(row[f"{name}_size"])].tobytes()
        for name, data in (("topic", play.topic_data), ("payload", play.payloads), ("extensions", play.payloads))
    )
    return OutgoingMessage(
        topic.decode(), payload, int(row["model_id"]), int(row["model_version"]), int(row["flags"]), extensions
    )
