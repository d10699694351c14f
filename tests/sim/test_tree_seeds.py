"""Distribution trees under every fault, and checkers that must detect broken promises."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.base.errors import SimulationError
from penstock.sim import TreePlant, TreePlantOptions, World, estimate_tree, run_tree_seed
from penstock.sim.tree.apps import Subscriber
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.downstream import Downstream
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.parent_selection import ParentSelection
from penstock.tree.core.root.publisher_positions import PublisherPositions
from penstock.tree.core.upstream import Upstream

SEEDS = 40
SEEDS_PER_TEST = 10
SOAK_SEEDS = 2_000
SECONDS = 0.5


def run_seeds(seeds: range, seconds: float = SECONDS) -> None:
    for seed in seeds:
        if seed < SEEDS and options_of(seed).agents >= 100:
            continue  # one of these plants has a test below, the others run in the soak
        run_tree_seed(seed, seconds=seconds)


def options_of(seed: int) -> TreePlantOptions:
    return TreePlantOptions.draw(World(seed).randomness.fork("options"))


@pytest.mark.spec("TREE-1", "TREE-3", "TREE-4", "TREE-5", "TREE-6", "TREE-7", "TREE-8", "TREE-10", "TREE-11")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_subscriber_misses_messages_without_a_report(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK_SEEDS, 20))
def test_many_more_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        run_tree_seed(seed, seconds=1.5)


@pytest.mark.soak
def test_two_hundred_agents_and_two_thousand_subscribers() -> None:
    plant = plant_of(agents=200, fan_out=6, subscribers=2_000, messages_per_s=20, fault_interval_ms=40)
    judged(plant, seconds=1.0)
    assert plant.summary().crashes > 2


def test_a_seed_replays_exactly() -> None:
    assert run_tree_seed(10, seconds=0.3) == run_tree_seed(10, seconds=0.3)
    assert run_tree_seed(10, seconds=0.3).digest != run_tree_seed(11, seconds=0.3).digest


def plant_of(seed: int = 7, **options: Any) -> TreePlant:
    return TreePlant(World(seed), TreePlantOptions(**options))


def judged(plant: TreePlant, seconds: float = 0.6) -> TreePlant:
    plant.start()
    plant.run(round(seconds * 1e9))
    plant.finish()
    return plant


def test_a_quiet_tree_loses_and_repeats_nothing() -> None:
    summary = judged(plant_of(agents=5, subscribers=6)).summary()
    assert (summary.receipts, summary.diverged, summary.crashes) == (0, 0, 0)
    assert summary.messages_delivered > 50


def test_an_estimate_of_a_large_tree_counts_all_subscribers() -> None:
    small, large = (estimate_tree(count, seconds=0.3) for count in (2_000, 60_000))
    assert (small.subscribers, large.subscribers) == (2_000, 60_000)
    assert small.levels < large.levels
    assert large.agent_link_bytes_per_s < large.leaf_bytes_per_s / 1_000
    assert large.first_ms_p50 < large.fan_out_ms_p50 <= large.fan_out_ms_max


# Each sabotage breaks one promise; a checker must detect the sabotage from outside.


def forget_where_catching_up_was(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CatchUp._valid_sequence
    monkeypatch.setattr(CatchUp, "_valid_sequence", lambda self, *args: original(self, *args) + 3)


def tell_everybody_it_is_further(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Upstream.advance
    monkeypatch.setattr(Upstream, "advance", lambda self, link, stream, last: original(self, link, stream, last + 2))


def take_every_message_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublisherPositions, "get", lambda self, publisher_id: 0)


def take_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party is told that its rights are gone, but still receives the messages."""
    monkeypatch.setattr(Downstream, "_regrant", lambda self, child: None)


def never_look_for_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ParentSelection._search
    monkeypatch.setattr(
        ParentSelection, "_search", lambda self, steps: original(self, steps) if not self.lost_ns else None
    )


def leave_those_who_wait_for_a_new_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the agent moves to another parent, it does not continue to fetch messages for its children."""
    monkeypatch.setattr(CatchUp, "serve_all", lambda self: None)


def pass_on_what_the_parent_says(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DistributionAgent._info

    def heard(self: DistributionAgent, link: int, packet: bytes) -> None:
        original(self, link, packet)
        if link == self.upstream.link:
            for child in self.children.links():
                self.outbox.send_frames(child, encode_block(packet))

    monkeypatch.setattr(DistributionAgent, "_info", heard)


def deliver_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Subscriber.packet

    def packet(self: Subscriber, *args: Any) -> None:
        original(self, *args)
        for each in self.subscriptions:
            each.position = max(0, each.position - 1) if each.position else each.position
        original(self, *args)

    monkeypatch.setattr(Subscriber, "packet", packet)


@pytest.mark.parametrize(
    ("sabotage", "checker"),
    [
        (forget_where_catching_up_was, "StoryChecker"),
        (tell_everybody_it_is_further, "StoryChecker"),
        (deliver_twice, "StoryChecker"),
        (take_nothing_away, "StoryChecker"),
        (take_every_message_again, "PublisherChecker|StoryChecker"),
        (never_look_for_a_parent, "ShapeChecker"),
        (leave_those_who_wait_for_a_new_parent, "CatchUpChecker"),
        (pass_on_what_the_parent_says, "InfostreamChecker"),
    ],
)
def test_the_checkers_detect_every_sabotage(
    monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[pytest.MonkeyPatch], None], checker: str
) -> None:
    sabotage(monkeypatch)

    def run_some() -> None:
        for seed in range(3):
            plant = plant_of(seed, agents=4, subscribers=6, fault_interval_ms=30, messages_per_s=300)
            for subscriber in plant.subscribers[:3]:
                plant.world.after(300_000_000, partial(plant.revoke, subscriber))
            judged(plant)

    with pytest.raises(SimulationError, match=checker):
        run_some()
