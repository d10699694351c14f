"""The status of an agent's core for its operator; may be read in any thread."""

from collections.abc import Mapping
from typing import Any, cast

from penstock.base.errors import PenstockError
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.children import ChildLeg
from penstock.tree.core.events import Party
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.status import AgentStatus, LinkStatus, State, StreamStatus
from penstock.tree.core.streams import Stream


def observed(core: DistributionAgent, links_max: int, **facts: Any) -> AgentStatus:
    """The status with at most this number of links; `facts` are known only to the driver."""
    membership, fanout, config = core.membership, core.fanout, core.environment.config
    children = list(core.children)
    upward = [link for link in fanout.links() if link not in core.children] if links_max else []
    above = [_link(fanout, link, Party(membership.parent, "agent"), "parent") for link in upward]
    below = [_link(fanout, each.link, each.party, each.party.role, each.legs) for each in children[:links_max]]
    return AgentStatus(
        name=config.name,
        kind="agent",
        tree=config.tree,
        state=cast("State", membership.role),
        is_rooted=membership.is_rooted,
        term=membership.term,
        parent=membership.parent,
        path=membership.path,
        load_percent=core.load_balancer.percent,
        streams=[found for each in list(core.streams) if (found := _stream(fanout, each)) is not None],
        links=[each for each in (*above, *below) if each is not None],
        child_count=len(children),
        is_degraded=core.sequencer.is_degraded,
        why_alone="" if membership.parent else membership.last_rejection,
        **facts,
    )


def _stream(fanout: Fanout, stream: Stream) -> StreamStatus | None:
    try:
        info, state = stream.info, fanout.stream(stream.number)
    except PenstockError:  # it is being opened, or was closed in the meantime
        return None
    return StreamStatus(info.number, info.name, info.topics, state.term, state.last, state.kept_after, state.duplicates)


def _link(
    fanout: Fanout, link: int, party: Party, role: str, legs: Mapping[int, ChildLeg] | None = None
) -> LinkStatus | None:
    try:
        state = fanout.link(link)
    except PenstockError:  # it has ended in the meantime
        return None
    held = list((legs or {}).values())
    return LinkStatus(
        link=link,
        name=party.name,
        role=role,
        place=party.place,
        home=party.home,
        waiting_bytes=state.waiting,
        packets_out=state.packets_out,
        bytes_out=state.bytes_out,
        packets_in=state.packets_in,
        bytes_in=state.bytes_in,
        conflated=state.conflated,
        legs=len(held),
        is_lagging=any(leg.is_held and not leg.is_live for leg in held),
    )
