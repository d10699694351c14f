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
    @property
    def unsent(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def append(self, topic: str, payload: Buffer, model_id: int, model_version: int) -> bool: ...
    def take_unsent(self, now_ns: int) -> tuple[int, int]: ...
