"""Recorded feeds as source streams: files of messages, captures of a network, text.

with open_source(Path("day.itch.gz")) as source:
    for event in source:                        # SessionStarted, SourceReady, SourceLost, SessionEnded
        ...
for damage in source.damages: ...               # what could not be read, and where
"""

from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, Self, TypeAlias

from penstock.base.core import Tick
from penstock.base.errors import ConfigurationError, PacketError
from penstock.convert import SourceBatch
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.arbiter import LineArbiter
from penstock.feed.core.lines.events import LineDatagram, LineInstruction, SessionEnded, SessionStarted, SourceReady
from penstock.feed.formats import DatagramFormat, datagram_format, known_formats
from penstock.feed.formats.content import LOOK_SIZE, described, foreign, is_blocks, is_capture, is_table, is_text
from penstock.feed.formats.csvticks import CsvTicks
from penstock.feed.formats.itchfile import ItchFile
from penstock.feed.formats.pcap import CapturedDatagram, CaptureReader
from penstock.feed.formats.stream import ByteStream, Damage, Damages, excerpt

FileFormat: TypeAlias = Literal["itch", "csv", "capture"]
CAPTURE_LINES_MAX = 7
CAPTURE_CONFIG = LineConfig(request_attempts_max=0, jump_wait_ms=0, silent_ms=3_600_000)
RESET_MESSAGES_MIN = 1_000
TEXT_SUFFIXES = {".csv", ".txt"}
READ = (
    "supported are files of ITCH messages, captures (pcap, pcapng) and .csv, plain or compressed with gzip, zstd or zip"
)


class _Numbered(Protocol):
    """A file that is one session from its first byte to its last."""

    damages: Damages
    next_sequence: int

    def __iter__(self) -> Iterator[SourceBatch]: ...


class SourceFile:
    """A recorded feed, from its start to its end; afterwards `damages` lists its errors.

    Iterating yields the instructions of a LineArbiter, each valid until the next step.
    """

    def __init__(self, file: BinaryIO, events: Iterable[LineInstruction], damages: Damages) -> None:
        self._file = file
        self._events = events
        self.damages = damages

    def __iter__(self) -> Iterator[LineInstruction]:
        return iter(self._events)

    def batches(self) -> Iterator[SourceBatch]:
        """Only the messages."""
        for event in self._events:
            if isinstance(event, SourceReady):
                yield event.batch

    @property
    def position(self) -> int:
        """Number of bytes of the file read so far."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(
    path: Path,
    *,
    file_format: FileFormat | None = None,
    framing: str | None = None,
    destinations: Iterable[str] = (),
    has_header: bool = False,
) -> SourceFile:
    """Open a recorded feed. Its format follows from its content and name by default; compression is always detected.

    For a capture, `framing` is the datagram format (default: detected), and `destinations` (group:port) are the
    lines of the stream (default: all).
    """
    wanted = datagram_format(framing) if framing else None
    file = open_file(path)
    try:
        stream = ByteStream(file)
        chosen = file_format or guess_format(path, stream)
        if chosen == "capture":
            capture = CaptureReader(stream)
            damages = capture.damages
            return SourceFile(file, _capture_events(capture, wanted, set(destinations)), damages)
        numbered: _Numbered = CsvTicks(stream, has_header=has_header) if chosen == "csv" else ItchFile(stream)
        return SourceFile(file, _file_events(path.name, numbered), numbered.damages)
    except BaseException:
        file.close()
        raise


def open_file(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from None


def guess_format(path: Path, stream: ByteStream) -> FileFormat:
    """Detect the format of a file by its content; text needs a name ending in .csv or .txt, and so does an empty file.

    Anything else is an error that describes the content.
    """
    start = stream.peek(LOOK_SIZE)
    is_named_text = bool(TEXT_SUFFIXES & {*path.suffixes, *Path(stream.name).suffixes})
    if not start and stream.damage is not None:
        raise ConfigurationError(f"cannot be read: {stream.damage.what}", where=str(path))
    if is_capture(start):
        return "capture"
    if what := foreign(start):
        within = f" (in {stream.compression})" if stream.compression else ""
        raise ConfigurationError(f"this is {what}{within}, which cannot be read as a feed", where=str(path), hint=READ)
    if is_named_text and is_text(start) and not is_table(start):
        hint = "a text feed has columns separated by commas; --format csv reads the file anyway"
        raise ConfigurationError("this is text without columns", where=str(path), hint=hint)
    if is_named_text and (is_text(start) or not start):
        return "csv"
    if is_blocks(start) or not start:
        return "itch"
    hint = "rename it to .csv, or set the format csv" if is_text(start) else READ
    raise ConfigurationError(f"this is {described(start)}", where=str(path), hint=hint)


def guess_framing(data: bytes) -> DatagramFormat | None:
    """Return the format of this datagram."""
    for each in known_formats():
        try:
            each.decode(data)
        except PacketError:
            continue
        return each
    return None


def _file_events(name: str, file: _Numbered) -> Iterator[LineInstruction]:
    """Yield the events of a file; a file without messages has no session."""
    first = file.next_sequence
    is_started = False
    for batch in file:
        if not is_started:
            yield SessionStarted(name, first)
            is_started = True
        yield SourceReady(batch)
    if is_started:
        yield SessionEnded(name, file.next_sequence)


def _capture_events(
    capture: CaptureReader, chosen: DatagramFormat | None, destinations: set[str]
) -> Iterator[LineInstruction]:
    """Yield events of a capture. Every destination is a line of the same stream; messages missing on all of them are
    lost, because there is no request server.

    Time is the capture's own, so that equal files give equal results.
    """
    lines: _CapturedLines | None = None
    is_wanted = False
    for captured in capture:
        if destinations and f"{captured.destination[0]}:{captured.destination[1]}" not in destinations:
            continue
        is_wanted = True
        chosen = chosen or guess_framing(captured.data)
        if chosen is None:
            _note(capture, captured, "has an unknown datagram format")
            continue
        lines = lines or _CapturedLines(capture, chosen)
        yield from lines.take(captured)
    if lines is not None:
        yield from lines.arbiter.restart()
    elif not is_wanted:
        capture.damages.note(Damage(_nothing_in(capture, destinations), 0))


def _nothing_in(capture: CaptureReader, destinations: set[str]) -> str:
    """Explain why a capture has no messages; captures with datagrams of unknown format have a damage for each."""
    if not capture.frames:
        return "the capture has no readable frame"
    skipped = ", ".join(f"{count:,} {what}" for what, count in capture.skipped.items())
    wanted = f" to {', '.join(sorted(destinations))}" if destinations else ""
    return f"the capture has no UDP datagram{wanted}; of {capture.frames:,} frames: {skipped or 'none is another kind'}"


class _CapturedLines:
    """A line arbiter for captured datagrams, with checks for conditions that it would not notice itself."""

    def __init__(self, capture: CaptureReader, framing: DatagramFormat) -> None:
        self.arbiter = LineArbiter(CAPTURE_CONFIG, framing, lines=CAPTURE_LINES_MAX)
        self._capture = capture
        self._lines: dict[tuple[str, int], int] = {}
        self._latest: dict[int, int] = {}
        self._first_sequence = 1  # of the captured part of the session
        self._now_ns = 0

    def take(self, captured: CapturedDatagram) -> Iterator[LineInstruction]:
        self._now_ns = max(self._now_ns, captured.time_ns)
        try:
            segment = self.arbiter.framing.decode(captured.data)
        except PacketError as error:
            _note(self._capture, captured, error.what)
            return
        if segment.first_sequence < 1:
            _note(self._capture, captured, "its messages have no numbers")
            return
        line = self._lines.setdefault(captured.destination, len(self._lines) % CAPTURE_LINES_MAX)
        if segment.messages:
            if segment.session != self.arbiter.session:
                self._latest.clear()
            elif _is_reset(self._latest.get(line, 0), segment.first_sequence):
                _note(self._capture, captured, f"the source restarted its numbers at {segment.first_sequence}")
                self._latest.clear()
                yield from self.arbiter.restart()
            elif segment.first_sequence < self._first_sequence:
                _note(self._capture, captured, "its messages precede the first captured one, but arrived later")
            self._latest[line] = segment.next_sequence - 1
        while (deadline_ns := self.arbiter.next_deadline_ns()) is not None and deadline_ns <= self._now_ns:
            yield from self.arbiter.handle(Tick(), deadline_ns)
        for event in self.arbiter.handle(LineDatagram(line, captured.data, captured.time_ns), self._now_ns):
            if isinstance(event, SessionStarted):
                self._first_sequence = event.first
            yield event


def _is_reset(latest: int, first: int) -> bool:
    """True for a restart: a line does not return to its first message, nor far back, because late copies arrive
    soon."""
    return latest > 1 and (first == 1 or latest - first > RESET_MESSAGES_MIN)


def _note(capture: CaptureReader, captured: CapturedDatagram, what: str) -> None:
    host, port = captured.destination
    capture.damages.note(Damage(f"datagram to {host}:{port}: {what}", captured.offset, excerpt(captured.data)))
