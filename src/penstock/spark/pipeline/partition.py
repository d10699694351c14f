"""Assign topics to multicast groups so that hosts receive as few unwanted messages as possible.

Topics wanted by the same hosts form a class, which has no cost. While there are more classes than groups, the two
classes whose union wastes least are merged; then single classes move to groups where they waste less, until no move
helps. The result is a pure function of the arguments.

The cost of a group is |hosts of the group| x its messages. The messages that the hosts want are included, because this
part is the same for every partition.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
Weights = NDArray[np.int64]
Numbers = NDArray[np.intp]

CLASSES_MAX = 2_048
"""Number of the heaviest classes that are compared pairwise; lighter classes join the group where they cost least."""

PASSES_MAX = 8
INFINITE = np.iinfo(np.int64).max


def partition(hosts: Bits, weights: Weights, groups_max: int) -> Numbers:
    """Return the group number of each topic, below `groups_max`.

    Row n of `hosts` has a bit for every host that wants topic n; weights[n] is the topic's number of messages or bytes.
    """
    classes, class_of = np.unique(hosts, axis=0, return_inverse=True)
    class_of = class_of.reshape(-1)
    load = np.zeros(len(classes), np.int64)
    np.add.at(load, class_of, weights)
    if len(classes) <= groups_max:
        return class_of
    group_of = _Groups(classes, load, _merged(classes, load, groups_max)).settled()
    _, dense = np.unique(group_of, return_inverse=True)
    return np.asarray(dense.reshape(-1)[class_of])


def cost_of(hosts: Bits, weights: Weights, group_of: Numbers) -> int:
    """Return the number of unwanted messages delivered, if every host joins the groups of its topics."""
    total = 0
    for group in np.unique(group_of):
        chosen = group_of == group
        union = np.bitwise_or.reduce(hosts[chosen], axis=0)
        total += int(counts(union[None])[0]) * int(weights[chosen].sum())
        total -= int((counts(hosts[chosen]) * weights[chosen]).sum())
    return total


def counts(bits: Bits) -> Weights:
    """Return the number of hosts in each row."""
    return np.asarray(np.bitwise_count(bits).sum(axis=1, dtype=np.int64))


def _merged(classes: Bits, load: Weights, groups_max: int) -> Numbers:
    """Return the group of each class, by repeatedly merging the cheapest pair."""
    order = np.lexsort((np.arange(len(classes)), -load))
    heavy, light = order[:CLASSES_MAX], order[CLASSES_MAX:]
    group_of = np.arange(len(classes))
    pairs = _Pairs(classes[heavy], load[heavy])
    for number in light:
        group_of[number] = heavy[pairs.join(classes[number], int(load[number]))]
    while pairs.count > groups_max:
        kept, gone = pairs.merge()
        group_of[group_of == heavy[gone]] = heavy[kept]
    return group_of


class _Pairs:
    """The groups that are not merged yet, and the cheapest partner of each."""

    def __init__(self, hosts: Bits, load: Weights) -> None:
        self._hosts = hosts.copy()
        self._load = load.copy()
        self._size = counts(hosts)
        self._is_there = np.ones(len(hosts), bool)
        self._price = np.full(len(hosts), INFINITE)
        self._partner = np.zeros(len(hosts), np.intp)
        self._is_priced = False
        self.count = len(hosts)

    def join(self, hosts: Bits, load: int) -> int:
        """Add a class to the group where it costs least, and return that group."""
        chosen = int(np.argmin(self._costs(hosts, load)))
        self._grow(chosen, hosts, load)
        return chosen

    def merge(self) -> tuple[int, int]:
        """Merge the cheapest pair; return the remaining and the removed group."""
        if not self._is_priced:
            for number in range(len(self._hosts)):
                self._look_for_partner(number)
            self._is_priced = True
        kept = int(np.argmin(self._price))
        gone = int(self._partner[kept])
        kept, gone = min(kept, gone), max(kept, gone)
        self._is_there[gone] = False
        self._price[gone] = INFINITE
        self.count -= 1
        self._grow(kept, self._hosts[gone], int(self._load[gone]))
        orphans = self._is_there & ((self._partner == gone) | (self._partner == kept))
        orphans[kept] = True
        for number in np.flatnonzero(orphans).tolist():
            self._look_for_partner(number)
        costs = self._costs(self._hosts[kept], int(self._load[kept]))
        closer = self._is_there & (costs < self._price)
        closer[kept] = False
        self._price[closer] = costs[closer]
        self._partner[closer] = kept
        return kept, gone

    def _costs(self, hosts: Bits, load: int) -> Weights:
        """Return the additional cost of merging this group with each other group."""
        union = counts(self._hosts | hosts)
        apart = self._size * self._load + int(counts(hosts[None])[0]) * load
        return np.where(self._is_there, union * (self._load + load) - apart, INFINITE)

    def _look_for_partner(self, number: int) -> None:
        costs = self._costs(self._hosts[number], int(self._load[number]))
        costs[number] = INFINITE
        self._partner[number] = np.argmin(costs)
        self._price[number] = costs[self._partner[number]]

    def _grow(self, number: int, hosts: Bits, load: int) -> None:
        self._hosts[number] |= hosts
        self._load[number] += load
        self._size[number] = counts(self._hosts[number][None])[0]


class _Groups:
    """Groups whose classes may still move, with the number of classes per host and group."""

    def __init__(self, classes: Bits, load: Weights, group_of: Numbers) -> None:
        self._classes = classes
        self._load = load
        names, dense = np.unique(group_of, return_inverse=True)
        self._group_of = dense.reshape(-1)
        self._wanting: NDArray[Any] = np.zeros((len(names), classes.shape[1] * 64), np.int32)
        self._hosts = np.zeros((len(names), classes.shape[1]), np.uint64)
        self._size = np.zeros(len(names), np.int64)
        self._group_load = np.zeros(len(names), np.int64)
        for number in range(len(classes)):
            self._move(number, int(self._group_of[number]), 1)

    def settled(self) -> Numbers:
        """Return the groups once no class costs less elsewhere."""
        for _ in range(PASSES_MAX):
            if not sum([self._improve(number) for number in range(len(self._classes))]):
                break
        return self._group_of

    def _improve(self, number: int) -> bool:
        here = int(self._group_of[number])
        self._move(number, here, -1)
        joined = counts(self._hosts | self._classes[number])
        more = joined * (self._group_load + self._load[number]) - self._size * self._group_load
        best = int(np.argmin(more))
        chosen = best if more[best] < more[here] else here
        self._group_of[number] = chosen
        self._move(number, chosen, 1)
        return chosen != here

    def _move(self, number: int, group: int, sign: int) -> None:
        wanting = self._wanting[group]
        wanting += sign * np.unpackbits(self._classes[number].view(np.uint8), bitorder="little").astype(np.int32)
        self._hosts[group] = np.packbits(wanting > 0, bitorder="little").view(np.uint64)
        self._size[group] = np.count_nonzero(wanting)
        self._group_load[group] += sign * self._load[number]
