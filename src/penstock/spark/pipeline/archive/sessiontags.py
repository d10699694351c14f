"""Sessions of the messages of a slice, found in a worker by the tags in their ORIGIN flags."""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.wire.term import LINEAGE_SHIFT, SESSION_TAG_SHIFT

SEQ_BITS = 40
"""Bits of the sequence number in a message's position, below the lineage."""


class SeenRun(msgspec.Struct, array_like=True):
    """Messages of one stream, lineage and session tag in one slice; or the announcement that their session ended."""

    place: int
    """The lowest position of the messages; for an end, the position of the session's last message."""
    tag: int
    first_ns: int
    """Event times."""
    last_ns: int
    begun: int = 0
    """The first lineage of the session, if announced; else 0."""
    is_end: bool = False
    """Messages at higher places with this tag belong to another session."""


class SessionsSeen:
    """Collects the sessions of one slice."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int, int, int], SeenRun] = {}
        self._ends: dict[tuple[int, int, int], list[int]] = {}

    def note_ends(self, origins: NDArray[Any]) -> None:
        """Announcements that a session ended (their rows of capture.core.rows.ORIGIN_DTYPE)."""
        for origin in origins:
            lineage, tag = int(origin["term"]) >> LINEAGE_SHIFT, int(origin["flags"]) >> SESSION_TAG_SHIFT
            ends = self._ends.setdefault((int(origin["stream_id"]), lineage, tag), [])
            if (number := int(origin["seq"])) not in ends:  # every adapter of a feed announces the end
                insort(ends, number)

    def note(self, origins: NDArray[Any], times_ns: NDArray[np.int64]) -> None:
        """Record rows of capture.core.rows.ORIGIN_DTYPE and their times."""
        lineages = origins["term"] >> np.uint64(LINEAGE_SHIFT)
        keys = np.empty((len(origins), 3), np.int64)
        keys[:, 0] = origins["stream_id"]
        keys[:, 1] = lineages
        keys[:, 2] = origins["flags"] >> SESSION_TAG_SHIFT
        if (keys == keys[0]).all():  # almost always
            self._add(keys[0], origins["seq"], times_ns)
            return
        different, which = np.unique(keys, axis=0, return_inverse=True)
        for number, key in enumerate(different):
            chosen = which.reshape(-1) == number
            self._add(key, origins["seq"][chosen], times_ns[chosen])

    def _add(self, key: NDArray[np.int64], seqs: NDArray[Any], times_ns: NDArray[np.int64]) -> None:
        stream, lineage, tag = key.tolist()
        if (ends := self._ends.get((stream, lineage, tag))) is None:
            self._add_run((stream, lineage, tag, 0), seqs, times_ns)
            return
        passed = np.searchsorted(np.array(ends, np.uint64), seqs.astype(np.uint64), side="left")
        for number in np.unique(passed).tolist():
            chosen = passed == number
            self._add_run((stream, lineage, tag, number), seqs[chosen], times_ns[chosen])

    def _add_run(self, key: tuple[int, int, int, int], seqs: NDArray[Any], times_ns: NDArray[np.int64]) -> None:
        _, lineage, tag, _ = key
        place = (lineage << SEQ_BITS) + int(seqs.min())
        found = SeenRun(place, tag, int(times_ns.min()), int(times_ns.max()))
        known = self._runs.setdefault(key, found)
        known.place = min(known.place, found.place)
        known.first_ns = min(known.first_ns, found.first_ns)
        known.last_ns = max(known.last_ns, found.last_ns)

    def export(self, beginnings: Mapping[int, Sequence[int]] | None = None) -> dict[str, list[SeenRun]]:
        """Return the runs by stream; `beginnings` come from capture.core.cursors."""
        made: dict[str, list[SeenRun]] = {}
        for (stream, lineage, _, _), run in self._runs.items():
            begun = (beginnings or {}).get(stream, ())
            earlier = bisect_right(begun, lineage)
            run.begun = begun[earlier - 1] if earlier else 0
            made.setdefault(str(stream), []).append(run)
        for (stream, lineage, tag), ends in self._ends.items():
            found = [SeenRun((lineage << SEQ_BITS) + end, tag, 0, 0, is_end=True) for end in ends]
            made.setdefault(str(stream), []).extend(found)
        return made
