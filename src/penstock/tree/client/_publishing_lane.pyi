from collections.abc import Mapping
from typing import Any

from typing_extensions import Buffer

from penstock.model import Message
from penstock.net.live.link import Link
from penstock.tree.client.core.publisher import Publisher
from penstock.tree.core.control import StreamInfo

class PublishingLane:
    room: int
    links: Mapping[int, Link] | None
    streams: Mapping[int, StreamInfo] | None
    stream_by_topic: dict[str, int]
    def __init__(self, core: Publisher, lock: Any, publisher_id: int) -> None: ...
    def publish(
        self, topic: str, payload: Buffer | Message, model_id: int, model_version: int, extensions: bytes, stream: int
    ) -> int: ...
