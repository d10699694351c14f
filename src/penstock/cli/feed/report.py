"""The readable report of `penstock feed info`."""

from datetime import UTC, datetime

from penstock.base.readable import printable
from penstock.feed.recorded.inspect import FileReport, StreamReport

NAMES = {"csv": "text, a message per line", "capture": "a capture"}


def report_text(report: FileReport) -> str:
    packed = f" after decompression ({report.compression})" if report.compression else ""
    lines = [f"{_name(report)}, {report.bytes_read:,} bytes{packed}"]
    if report.columns:
        lines.append("columns: " + printable(", ".join(report.columns)))
    if report.column_counts is not None:
        least, most = report.column_counts
        lines.append(f"{least} columns in every line" if least == most else f"{least} to {most} columns in a line")
    for stream in report.streams:
        lines += _stream_lines(stream)
    lines += [f"skipped: {count:,} frames, {what}" for what, count in report.skipped.items()]
    if (first := report.first_unknown) is not None:
        lines.append(f"the first of those datagrams, to {first.what} (at {first.offset:,}), begins {first.excerpt}")
    lines += [f"damaged {damage}" for damage in report.damages]
    if report.damages_total > len(report.damages):
        lines.append(f"… and {report.damages_total - len(report.damages):,} more places")
    if report.is_itch and report.missized:
        where = f"from message {report.first_missized:,}"
        lines.append(f"damaged: {report.missized:,} messages, {where}, lack the size of their type")
    lines += _verdict(report)
    return "\n".join(lines)


def _name(report: FileReport) -> str:
    if report.format != "itch":
        return NAMES[report.format]
    if report.is_itch:
        return "ITCH messages"
    what = "none with the size of its type in ITCH 5.0" if report.missized else "none of a type of ITCH 5.0"
    return f"messages with their sizes before them, {what}"


def _verdict(report: FileReport) -> list[str]:
    """Return the verdict on damage. Parts that could not be read are not reported as undamaged."""
    if report.format == "itch" and not report.is_itch and report.streams[0].messages:
        return ["no message is of a known format: whether the file is damaged is unknown"]
    if not report.is_readable:
        return ["the file is not a known feed"]
    if report.is_damaged:
        return []
    if report.skipped:
        return [f"the parts that were read are undamaged; {sum(report.skipped.values()):,} frames were skipped"]
    return ["the file is undamaged"]


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
        lines.append(f"  {stream.duplicates:,} duplicate messages")
    if stream.resets:
        lines.append(f"  the sequence numbers restarted {stream.resets:,} times")
    return lines


def _time(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
