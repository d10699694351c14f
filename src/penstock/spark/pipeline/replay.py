"""Replay recorded messages to live subscribers, with their topics and numbers, at the original pace or faster.

    chosen = Chosen(from_ns, to_ns, topics=["md.us.eq.AAPL.>"])
    with MulticastPublisher(channel, config=REPLAYING) as publisher:
        played = replay(plays_of_archive(archive, chosen), publisher, speed=10.0)

Every packet has the flag REPLAY, and a publisher id and epoch of the replay's own. Receivers refuse such packets unless
configured to accept them, and never merge them with live streams.
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
"""A large retransmission buffer, because a replay at full speed outruns subscribers."""

PACK_MAX = 2_048
"""Maximum number of messages passed to the publisher at once."""

SIZE_MAX = 1_024
"""Size limit for packing a message together with others; longer messages may have to be fragmented."""

WAIT_SECONDS_MAX = 0.05


class Played(msgspec.Struct):
    """Progress of a replay."""

    messages: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0
    late_ns_max: int = 0
    """Maximum delay behind the schedule."""


def replay(
    plays: Iterator[Play],
    publisher: MulticastPublisher,
    *,
    speed: float,
    is_wanted: Callable[[], bool] = lambda: True,
    on_progress: Callable[[Played], None] = lambda played: None,
) -> Played:
    """Publish all messages; speed 1 is the original pace, 0 is as fast as possible. Ends early when `is_wanted` returns
    False.
    """
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
    """Publish messages in packs; a long message is sent alone, in its position."""
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
