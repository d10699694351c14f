"""Links of the simulator: order, byte rate, cuts, and how both ends learn of the end."""

import pytest

from penstock.sim import World
from penstock.sim.link import LinkEnd, OrderedLink

MS = 1_000_000
Link = OrderedLink[LinkEnd[str]]


class Pair:
    """A link whose ends record everything that arrives."""

    def __init__(self, seed: int, **options: int) -> None:
        self.world = World(seed)
        self.got: list[str] = []
        self.ended: list[str] = []
        self.is_cut = False
        self.link: Link = OrderedLink(
            self.world,
            self.world.randomness.fork("link"),
            MS,
            is_cut=lambda one, other: self.is_cut,
            bytes_per_s=options.get("bytes_per_s", 0),
            poll_ns=options.get("poll_ns", 0),
        )
        near = LinkEnd[str](self.link, "near", ended=lambda: self.ended.append("near"))
        far = LinkEnd(self.link, "far", self.got.append, lambda: self.ended.append("far"))
        self.link.ends = (near, far)
        self.near, self.far = near, far

    def send(self, *items: str, size: int = 0) -> None:
        for item in items:
            self.near.send(item, size)


@pytest.mark.parametrize("seed", range(10))
def test_items_arrive_in_order(seed: int) -> None:
    pair = Pair(seed)
    pair.send(*"abcdefgh")
    pair.world.run_until(MS)
    assert "".join(pair.got) == "abcdefgh"


def test_a_byte_rate_delays_items_and_reports_when_the_line_is_free() -> None:
    pair, free_ns = Pair(1, bytes_per_s=1_000_000), list[int]()
    for item in "abc":
        pair.near.send(item, 1_000, lambda: free_ns.append(pair.world.now_ns()))
    assert pair.near.bytes_in_flight == 3_000
    pair.world.run_until(MS - 1)
    assert not pair.got
    pair.world.run_until(4 * MS)
    assert free_ns == [MS, 2 * MS, 3 * MS]
    assert (pair.got, pair.near.bytes_in_flight, pair.near.bytes_sent) == (["a", "b", "c"], 0, 3_000)


@pytest.mark.parametrize("poll_ns", [0, MS])
def test_items_wait_behind_a_cut(poll_ns: int) -> None:
    pair = Pair(2, poll_ns=poll_ns)
    pair.is_cut = True
    pair.send("a", "b")
    pair.world.run_until(5 * MS)
    assert not pair.got
    pair.is_cut = False
    if not poll_ns:
        pair.link.resume()
    pair.world.run_until(7 * MS)
    assert pair.got == ["a", "b"]


def test_items_wait_for_an_end_that_does_not_read() -> None:
    pair = Pair(3)
    pair.far.is_reading = False
    pair.send("a")
    pair.world.run_until(2 * MS)
    assert not pair.got
    pair.far.is_reading = True
    pair.near.resume()
    pair.world.run_until(3 * MS)
    assert pair.got == ["a"]


def test_both_ends_learn_of_the_end_after_the_items_sent_before() -> None:
    pair = Pair(4)
    pair.send("a", "b")
    pair.link.end()
    pair.send("c")
    pair.world.run_until(2 * MS)
    assert (pair.got, sorted(pair.ended)) == (["a", "b"], ["far", "near"])
    assert not pair.far.is_open


def test_a_broken_link_loses_what_is_in_flight() -> None:
    pair = Pair(5)
    pair.send("a", "b")
    pair.link.break_off(pair.near)
    pair.world.run_until(0)
    assert pair.ended == ["near"], "the end that broke the link knows at once"
    pair.link.break_off()
    pair.world.run_until(2 * MS)
    assert (pair.got, pair.ended) == ([], ["near", "far"])


def test_a_dropped_link_notifies_neither_end() -> None:
    pair = Pair(6)
    pair.send("a")
    pair.link.drop()
    pair.world.run_until(2 * MS)
    assert (pair.got, pair.ended) == ([], [])


def test_heartbeats_end_a_link_that_is_cut_for_long() -> None:
    pair = Pair(7, poll_ns=MS)
    pair.link.watch(10 * MS)
    pair.is_cut = True
    pair.world.run_until(5 * MS)
    pair.is_cut = False
    pair.world.run_until(20 * MS)
    assert pair.link.is_up
    pair.is_cut = True
    pair.world.run_until(40 * MS)
    assert (pair.link.is_up, sorted(pair.ended)) == (False, ["far", "near"])
