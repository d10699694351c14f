"""What `penstock feed info` found, for people."""

from datetime import UTC, datetime

from penstock.cli.readable import printable
from penstock.feed.lines.inspect import FileReport, StreamReport

NAMES = {"itch": "ITCH messages", "csv": "text, a message per line", "capture": "a capture"}


def report_text(report: FileReport) -> str:
    lines = [f"{NAMES[report.format]}, {report.bytes_read:,} bytes after any decompression"]
    if report.columns:
        lines.append("columns: " + printable(", ".join(report.columns)))
    for stream in report.streams:
        lines += _stream_lines(stream)
    lines += [f"skipped: {count:,} frames, {what}" for what, count in report.skipped.items()]
    lines += [f"damaged {damage}" for damage in report.damages]
    if report.damages_total > len(report.damages):
        lines.append(f"… and {report.damages_total - len(report.damages):,} more places")
    if not report.damages_total:
        lines.append("nothing is damaged")
    return "\n".join(lines)


def _stream_lines(stream: StreamReport) -> list[str]:
    lines = []
    if stream.destination:
        lines.append(f"{stream.framing} to {stream.destination}, session {printable(stream.session) or '(blank)'}")
        lines.append(f"  {stream.datagrams:,} datagrams, {stream.heartbeats:,} of them heartbeats")
        lines.append(f"  captured {_time(stream.first_time_ns)} to {_time(stream.last_time_ns)}")
    numbers = f", numbers {stream.first_sequence} to {stream.next_sequence - 1}" if stream.messages else ""
    lines.append(f"  {stream.messages:,} messages{numbers}")
    if stream.types:
        lines.append("  " + "  ".join(f"{kind} {count:,}" for kind, count in stream.types.items()))
    if stream.missing:
        some = ", ".join(f"{gap.first} to {gap.last}" for gap in stream.gaps)
        lines.append(f"  {stream.missing:,} messages are missing: {some}")
    if stream.duplicates:
        lines.append(f"  {stream.duplicates:,} messages came again")
    if stream.resets:
        lines.append(f"  the numbers began anew {stream.resets:,} times")
    return lines


def _time(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
