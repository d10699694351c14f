"""The packet format: messages into packets and packets into messages.

It is bytes only: it keeps no stream's state, repairs nothing and opens no socket (that is penstock.middleware and
above), and it does not look into a message's content (that is penstock.model). Read protocol/packet.md first,
then packet.py for the vocabulary and _codec.pxd for the layout; _packet.pyx reads one packet, _packer.pyx
makes them, _batch.pyx does both for many at once.
"""

from penstock.wire._authentication import Authenticator, LeaseFlag
from penstock.wire._batch import MESSAGE_DTYPE, MESSAGES_MAX, PACKET_DTYPE, decode_batch, encode_batch
from penstock.wire._codec import ERROR_CAUSES, TRAILER_SIZE
from penstock.wire._datagrams import DatagramBatch
from penstock.wire._messages import MessageBatch
from penstock.wire._outbox import Outbox
from penstock.wire._packer import PACKET_SIZE_MIN, RANGES_MAX, Packer, encode_gone, encode_nack, restamp
from penstock.wire._packet import Packet, PacketMessage, decode
from penstock.wire._packets import PacketStore
from penstock.wire.authentication import AuthenticationKey, AuthenticationScope, VouchedPublisher
from penstock.wire.extensions import (
    Hop,
    Origin,
    Seal,
    decode_destination,
    decode_extensions,
    decode_hops,
    decode_interest_mask,
    decode_origin,
    decode_seal,
    decode_tags,
    encode_destination,
    encode_extensions,
    encode_hops,
    encode_interest_mask,
    encode_origin,
    encode_seal,
    encode_tags,
    find_origin,
)
from penstock.wire.packet import Extension, Kind, MessageFlag, OriginFlag, PacketFlag

__all__ = [
    "ERROR_CAUSES",
    "MESSAGES_MAX",
    "MESSAGE_DTYPE",
    "PACKET_DTYPE",
    "PACKET_SIZE_MIN",
    "RANGES_MAX",
    "TRAILER_SIZE",
    "AuthenticationKey",
    "AuthenticationScope",
    "Authenticator",
    "DatagramBatch",
    "Extension",
    "Hop",
    "Kind",
    "LeaseFlag",
    "MessageBatch",
    "MessageFlag",
    "Origin",
    "OriginFlag",
    "Outbox",
    "Packer",
    "Packet",
    "PacketFlag",
    "PacketMessage",
    "PacketStore",
    "Seal",
    "VouchedPublisher",
    "decode",
    "decode_batch",
    "decode_destination",
    "decode_extensions",
    "decode_hops",
    "decode_interest_mask",
    "decode_origin",
    "decode_seal",
    "decode_tags",
    "encode_batch",
    "encode_destination",
    "encode_extensions",
    "encode_gone",
    "encode_hops",
    "encode_interest_mask",
    "encode_nack",
    "encode_origin",
    "encode_seal",
    "encode_tags",
    "find_origin",
    "restamp",
]
