"""A journal's records as text for people and as JSON for programs. Penstock packets are shown with their content."""

import json
from functools import cache
from typing import Any

from penstock.base.errors import PacketError
from penstock.base.ids import format_group
from penstock.base.readable import harmless_json, printable
from penstock.capture.core.message_reader import KnownModels
from penstock.journal import Record
from penstock.wire import Kind, Packet, PacketMessage, decode

EXCERPT_SIZE = 64


def text_lines(record: Record) -> list[str]:
    head = f"{record.sequence:>10} {record.timestamp_ns} {len(record.payload):>6} B"
    packet = _packet(record.payload)
    if packet is None:
        return [f"{head}  {_excerpt(record.payload)}"]
    stream = f"publisher {packet.publisher_id:x} epoch {packet.epoch} group {format_group(packet.group)}"
    lines = [f"{head}  {Kind(packet.kind).name} {stream} packet {packet.sequence}"]
    for message in packet if packet.kind == Kind.DATA else ():
        view = _models().read(message)
        content = f"{view!r}" if view is not None else _content(message)
        lines.append(f"{'':>10}   {printable(message.topic)}: {content}")
    return lines


def json_line(record: Record) -> str:
    sequence, timestamp_ns, payload = record
    line: dict[str, Any] = {"sequence": sequence, "timestamp_ns": timestamp_ns, "size": len(payload)}
    packet = _packet(payload)
    if packet is None:
        line["payload"] = payload.hex()
    else:
        line["packet"] = {
            "kind": Kind(packet.kind).name,
            "publisher_id": packet.publisher_id,
            "group": format_group(packet.group),
            "epoch": packet.epoch,
            "sequence": packet.sequence,
            "messages": [_json_message(message) for message in packet] if packet.kind == Kind.DATA else [],
        }
    return harmless_json(json.dumps(line, ensure_ascii=False))


def _json_message(message: PacketMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"topic": message.topic, "model_id": message.model_id}
    view = _models().read(message)
    if view is not None:
        shown |= {"model": view.model.name, "fields": json.loads(view.to_json())}
    else:
        shown["payload"] = bytes(message.payload).hex()
    return shown


def _packet(payload: bytes) -> Packet | None:
    try:
        return decode(payload)
    except PacketError:
        return None  # a record of another kind


@cache
def _models() -> KnownModels:
    return KnownModels()


def _content(message: PacketMessage) -> str:
    return f"model {message.model_id}, {_excerpt(bytes(message.payload))}"


def _excerpt(payload: bytes) -> str:
    """Format a payload as text if it is printable, else as hexadecimal; cut it after EXCERPT_SIZE bytes."""
    more = "…" if len(payload) > EXCERPT_SIZE else ""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return payload[:EXCERPT_SIZE].hex() + more
    return repr(text[:EXCERPT_SIZE]) + more if text.isprintable() else payload[:EXCERPT_SIZE].hex() + more
