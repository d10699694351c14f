from typing_extensions import Buffer

from penstock.wire import Packer, PacketStore

class OutgoingCursor:
    packer: Packer
    kept: PacketStore
    topics: dict[str, bytes]
    packets_sent: int
    messages_published: int
    silence_first_ns: int
    keep_alive_deadline_ns: int
    silence_ns: int
    is_prompt: bool
    def publish_one(self, topic: str, payload: Buffer, model_id: int, model_version: int, now_ns: int) -> int: ...
