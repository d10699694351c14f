"""Inspects a recorded feed: counts each stream, and lists missing, duplicate and damaged parts."""

from array import array
from collections import Counter

import msgspec

from penstock.base.errors import PacketError
from penstock.convert import SourceBatch
from penstock.convert.core.format import SourceFormat
from penstock.feed.formats import DatagramFormat, Segment
from penstock.feed.formats._framing import count_sizes, count_types
from penstock.feed.formats.csvticks import CsvTicks
from penstock.feed.formats.itchfile import ItchFile
from penstock.feed.formats.pcap import CapturedDatagram, CaptureReader
from penstock.feed.formats.stream import ByteStream, Damage, Damages, excerpt
from penstock.feed.recorded.files import FileFormat, guess_framing

GAPS_MAX = 20
STREAMS_MAX = 1_000


class Gap(msgspec.Struct, frozen=True):
    first: int
    last: int


class StreamReport(msgspec.Struct):
    """One session on one destination; a file is a single session."""

    destination: str
    framing: str
    session: str
    first_sequence: int = 0
    next_sequence: int = 0
    datagrams: int = 0
    heartbeats: int = 0
    messages: int = 0
    duplicates: int = 0
    missing: int = 0
    resets: int = 0
    gaps: list[Gap] = []
    """The first gaps; `missing` counts the messages of all."""

    types: dict[str, int] = {}
    first_time_ns: int = 0
    last_time_ns: int = 0


class FileReport(msgspec.Struct):
    """The report of `penstock feed info`."""

    format: FileFormat
    bytes_read: int
    streams: list[StreamReport]
    skipped: dict[str, int] = {}
    """Frames of a capture that are not datagrams of a known format, by kind."""

    first_unknown: Damage | None = None
    """The first datagram of unknown format: its destination, position, and first bytes."""

    columns: list[str] = []
    column_counts: tuple[int, int] | None = None
    """The minimum and maximum number of columns in the lines of a text."""

    compression: str = ""
    """gzip, zstd or zip."""

    damages: list[Damage] = []
    damages_total: int = 0
    itch_messages: int = 0
    """Messages of a file with a type of ITCH 5.0 and the size of that type."""

    missized: int = 0
    """Messages of a file with a type of ITCH 5.0 and another size."""

    first_missized: int = 0
    """The number of the first of these messages."""

    @property
    def is_damaged(self) -> bool:
        """True if damage was found. Wrong sizes count only in a file with ITCH messages."""
        return bool(self.damages_total or (self.is_itch and self.missized))

    @property
    def is_readable(self) -> bool:
        """True if the file is a known feed; messages of unknown types do not indicate damage."""
        is_known = self.format != "itch" or self.is_itch
        return is_known and any(stream.messages or stream.datagrams for stream in self.streams)

    @property
    def is_itch(self) -> bool:
        """True if a file of messages has any message of ITCH 5.0."""
        return self.itch_messages > 0


def inspect(stream: ByteStream, file_format: FileFormat, *, has_header: bool = False) -> FileReport:
    """Read the whole file."""
    if file_format == "capture":
        return _inspect_capture(stream)
    file = CsvTicks(stream, has_header=has_header) if file_format == "csv" else ItchFile(stream)
    types: Counter[str] = Counter()
    counts: set[int] = set()
    itch = _ItchSizes()
    for batch in file:
        if file_format == "itch":
            itch.take(batch, file.next_sequence)
            types.update({_letter(kind): count for kind, count in count_types(batch).items()})
        else:
            counts |= {line.count(b",") + 1 for _, line in batch}
    messages = file.next_sequence - 1
    report = StreamReport(
        "", file_format, "", 1, file.next_sequence, messages=messages, types=dict(sorted(types.items()))
    )
    columns = file.columns if isinstance(file, CsvTicks) else []
    found = _report(file_format, stream, [report], file.damages)
    found.columns = columns
    found.itch_messages, found.missized, found.first_missized = itch.right, itch.wrong, itch.first_wrong
    found.column_counts = (min(counts), max(counts)) if counts else None
    return found


class _ItchSizes:
    """Counts the messages that have the size of their ITCH 5.0 type."""

    def __init__(self) -> None:
        self.right = self.wrong = self.first_wrong = 0
        self._sizes = array("H", bytes(512))
        for message in SourceFormat.load("itch50").messages.values():
            if message.key is not None:
                self._sizes[message.key[0]] = message.size_min

    def take(self, batch: SourceBatch, next_sequence: int) -> None:
        """`next_sequence` is the number after the last message of the batch."""
        right, wrong, first = count_sizes(batch, self._sizes)
        if wrong and not self.wrong:
            self.first_wrong = next_sequence - len(batch) + first
        self.right += right
        self.wrong += wrong


def _inspect_capture(stream: ByteStream) -> FileReport:
    capture = CaptureReader(stream)
    streams: dict[tuple[str, str], StreamReport] = {}
    framing: DatagramFormat | None = None
    first_unknown: Damage | None = None
    for captured in capture:
        destination = f"{captured.destination[0]}:{captured.destination[1]}"
        framing = framing or guess_framing(captured.data)
        try:
            segment = framing.decode(captured.data) if framing else None
        except PacketError:
            other = guess_framing(captured.data)
            segment = other.decode(captured.data) if other else None
        if segment is None:
            what = "datagrams of unknown format"
            capture.skipped[what] = capture.skipped.get(what, 0) + 1
            first_unknown = first_unknown or Damage(destination, captured.offset, excerpt(captured.data))
            continue
        key = (destination, segment.session)
        if key not in streams and len(streams) == STREAMS_MAX:
            capture.damages.note(Damage(f"more than {STREAMS_MAX} streams", captured.offset))
            break
        name = framing.name if framing else ""
        _count(streams.setdefault(key, StreamReport(destination, name, segment.session)), segment, captured, capture)
    for each in streams.values():
        each.types = dict(sorted(each.types.items()))
    report = _report("capture", stream, list(streams.values()), capture.damages)
    report.skipped, report.first_unknown = capture.skipped, first_unknown
    return report


def _count(report: StreamReport, segment: Segment, captured: CapturedDatagram, capture: CaptureReader) -> None:
    report.datagrams += 1
    report.heartbeats += not segment.messages and not segment.is_end
    report.first_time_ns = report.first_time_ns or captured.time_ns
    report.last_time_ns = max(report.last_time_ns, captured.time_ns)
    report.messages += len(segment.messages)
    for message in segment.messages:
        letter = _letter(message[0] if message else 0)
        report.types[letter] = report.types.get(letter, 0) + 1
    if report.datagrams == 1:
        report.first_sequence = report.next_sequence = segment.first_sequence
    if segment.first_sequence > report.next_sequence:
        report.missing += segment.first_sequence - report.next_sequence
        if len(report.gaps) < GAPS_MAX:
            report.gaps = [*report.gaps, Gap(report.next_sequence, segment.first_sequence - 1)]
    elif segment.first_sequence < report.next_sequence and segment.messages:
        if segment.first_sequence <= 1 or segment.first_sequence < report.first_sequence:
            report.resets += 1
            what = f"{report.session or 'the session'} restarted its numbers at {segment.first_sequence}"
            capture.damages.note(Damage(what, captured.offset, excerpt(captured.data)))
            report.next_sequence = report.first_sequence = segment.first_sequence
        else:
            report.duplicates += min(len(segment.messages), report.next_sequence - segment.first_sequence)
    report.next_sequence = max(report.next_sequence, segment.next_sequence)


def _report(file_format: FileFormat, stream: ByteStream, streams: list[StreamReport], damages: Damages) -> FileReport:
    return FileReport(
        file_format,
        stream.offset,
        streams,
        compression=stream.compression,
        damages=list(damages),
        damages_total=damages.total,
    )


def _letter(kind: int) -> str:
    return chr(kind) if 32 < kind < 127 else f"0x{kind:02x}"
