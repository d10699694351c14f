"""Sealed streams: payloads are encrypted, so that only holders of the stream key can read or create them.

    subkey     HKDF-SHA256(stream key, info = "penstock seal 1" + u64 publisher id + u32 epoch), 32 bytes
        nonce      6 bytes that the sealer chose at random when it was created, and a u48 counter of sealed messages
        content    AES-256-GCM of the payload, followed by the 16-byte tag
    bound to   u16 size of the topic + topic + u16 model id + u16 model version + u8 1 + ORIGIN without its flags
                              (u32 stream id, u32 term, u16 index, u64 source sequence, u64 message sequence), or u8 0
without ORIGIN

Numbers are little-endian. Every publisher has its own subkey in each epoch, and a counter, so nonces do not repeat. The
random part limits the damage if two sealers by mistake have the same publisher, epoch and key. Flags are not covered,
because a backup's copy may get new flags on its way.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.base.clock import random_bytes
from penstock.base.errors import LimitError, LocalProtocolError, SealError, SealKeyError
from penstock.wire import Origin, Seal

KEY_SIZE = 32
TAG_SIZE = 16
KEYS_MAX = 256
"""Number of keys that a ring holds; beyond it the oldest are dropped."""
SUBKEYS_MAX = 1_024
SALT_SIZE = 6
COUNT_SIZE = 6
COUNT_MAX = 2 ** (8 * COUNT_SIZE)
"""Maximum number of messages per sealer. Keys are rotated long before this limit."""

_HEAD = struct.Struct("<HHB")
_ORIGIN = struct.Struct("<IIHQQ")
_INFO = struct.Struct("<QI")


class StreamKey(msgspec.Struct, frozen=True):
    """A key of a sealed feed, issued by the administration server."""

    feed: str
    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"StreamKey({self.feed!r}, {self.key_id}, hidden)"


class StreamKeyRing:
    """The keys of one holder, by id. Ids are unique among all feeds of one administration server."""

    def __init__(self, keys: Iterable[StreamKey] = ()) -> None:
        self._keys: OrderedDict[int, StreamKey] = OrderedDict()
        for key in keys:
            self.add(key)

    def add(self, key: StreamKey) -> None:
        if len(key.key) != KEY_SIZE:
            raise SealError(f"a stream key has {KEY_SIZE} bytes, not {len(key.key)}", where=f"key {key.key_id}")
        held = self._keys.get(key.key_id)
        if held is not None and held != key:
            raise SealError("two different keys have the same id", where=f"key {key.key_id}")
        self._keys[key.key_id] = key
        while len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)

    def get(self, key_id: int) -> StreamKey | None:
        return self._keys.get(key_id)

    def remove(self, key_id: int) -> None:
        self._keys.pop(key_id, None)

    @property
    def lowest_id(self) -> int | None:
        """The lowest id of the stored keys; None without keys."""
        return min(self._keys, default=None)

    def __contains__(self, key_id: int) -> bool:
        return key_id in self._keys

    def __len__(self) -> int:
        return len(self._keys)


class Sealed(NamedTuple):
    seal: Seal
    """The content of the SEAL extension."""
    payload: bytes


class Sealer:
    """Seals messages of one publisher in one epoch with one key. Create exactly one for this combination, because it
    counts the nonces. Give `salt` (6 bytes) only to repeat a run."""

    def __init__(self, key: StreamKey, publisher_id: int, epoch: int, *, salt: bytes | None = None) -> None:
        self.key_id = key.key_id
        self._salt = random_bytes(SALT_SIZE) if salt is None else salt
        if len(self._salt) != SALT_SIZE:
            raise LocalProtocolError(f"a sealer's salt has {SALT_SIZE} bytes, not {len(self._salt)}")
        self._cipher = _cipher(key, publisher_id, epoch)
        self._count = 0

    def seal(
        self, payload: bytes, *, topic: bytes, model_id: int = 0, model_version: int = 0, origin: Origin | None = None
    ) -> Sealed:
        if self._count >= COUNT_MAX:
            raise LimitError(f"{COUNT_MAX} messages were sealed with key {self.key_id}", hint="rotate the feed's keys")
        nonce = self._salt + self._count.to_bytes(COUNT_SIZE, "little")
        self._count += 1
        sealed = self._cipher.encrypt(nonce, payload, bound(topic, model_id, model_version, origin))
        return Sealed(Seal(self.key_id, nonce), sealed)


class Opener:
    """Opens messages that any publisher sealed with a key of the ring."""

    def __init__(self, ring: StreamKeyRing) -> None:
        self.ring = ring
        self._ciphers: OrderedDict[tuple[int, int, int], AESGCM] = OrderedDict()

    def open(
        self,
        payload: bytes,
        seal: Seal,
        *,
        publisher_id: int,
        epoch: int,
        topic: bytes,
        model_id: int = 0,
        model_version: int = 0,
        origin: Origin | None = None,
    ) -> bytes:
        """Return the original payload. Raise SealError if it was changed, or SealKeyError if the key is not in the
        ring (yet)."""
        key = self.ring.get(seal.key_id)
        if key is None:
            raise SealKeyError("the key is unknown on this host", key_id=seal.key_id, where=f"key {seal.key_id}")
        place = (seal.key_id, publisher_id, epoch)
        cipher = self._ciphers.get(place)
        if cipher is None:
            cipher = self._ciphers[place] = _cipher(key, publisher_id, epoch)
            if len(self._ciphers) > SUBKEYS_MAX:
                self._ciphers.popitem(last=False)
        try:
            return cipher.decrypt(seal.nonce, payload, bound(topic, model_id, model_version, origin))
        except (InvalidTag, ValueError):
            raise SealError("the content was changed, or was sealed for another message") from None


def bound(topic: bytes, model_id: int, model_version: int, origin: Origin | None) -> bytes:
    """The associated data of a sealed payload."""
    head = len(topic).to_bytes(2, "little") + topic
    if origin is None:
        return head + _HEAD.pack(model_id, model_version, 0)
    numbers = (origin.stream_id, origin.term, origin.message_index, origin.source_sequence, origin.message_sequence)
    return head + _HEAD.pack(model_id, model_version, 1) + _ORIGIN.pack(*numbers)


def _cipher(key: StreamKey, publisher_id: int, epoch: int) -> AESGCM:
    try:
        info = b"penstock seal 1" + _INFO.pack(publisher_id, epoch)
    except struct.error:
        raise LocalProtocolError(f"publisher id {publisher_id} or epoch {epoch} is out of range") from None
    return AESGCM(HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(key.key))
