"""Messages of the infostream of a tree as sentences. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.base.words import counted
from penstock.tree.core import infostream as i

LISTED_MAX = 6
DEPTH_MAX = 4

_KINDS = {kind.kind: kind for kind in i.KINDS}


def sentence(info: i.Info) -> str:
    """What an agent says, with the agent as the subject left out: "lost its parent mid-1"."""
    match info:
        case i.Path(path=path, is_rooted=True, term=term):
            return f"reaches the root by {_way(path)} (term {term})"
        case i.Path(path=path):
            return f"has no way to the root; its path ends at {_way(path)}"
        case i.ParentLost(other=other):
            return f"lost its parent {other} and looks for another one"
        case i.ParentFound(other=other, path=path, is_rooted=True):
            return f"has the parent {other} and reaches the root by {_way(path)}"
        case i.ParentFound(other=other):
            return f"has the parent {other}, which has no way to the root"
        case i.Through(stream=stream, last=last):
            return f"passed on stream {stream} up to message {last:,}"
        case i.Lagging(stream=stream, last=last):
            return f"stopped sending stream {stream} live after message {last:,}, because the child is too slow"
        case i.Conflated(stream=stream, count=count):
            return f"replaced {counted(count, 'message')} of stream {stream} by newer ones of the same topics"
        case i.Gone(stream=stream, first=first, last=last):
            return f"no longer keeps messages {first:,} to {last:,} of stream {stream}"
        case i.Diverged(stream=stream, first=first, last=last, term=term):
            lost = f"messages {first:,} to {last:,} of stream {stream}"
            return f"replaces {lost}, which only the lost root of term {term} had"
        case i.Siblings(agents=agents):
            return f"has below it {_agents(agents)}" if agents else "has no agents below it"
        case i.Alternates(agents=agents):
            return f"names as alternative parents {_agents(agents)}" if agents else "knows no alternative parents"
        case i.MoveTo(place=place, reason=reason):
            return f"asks the child to move to the agent at {place}{_why(reason)}"
        case i.ReturnTo(agent=agent, reason=reason):
            return f"asks the child to return to {agent}{_why(reason)}"
        case i.Stopping(reason=reason):
            return f"shuts down{_why(reason)}"
        case i.Load(percent=percent):
            return f"has a load of {percent}%"
        case i.Revoked(topics=topics, reason=reason):
            what = _listed(topics) or "any topic"
            return f"sends no more messages of {what}, because the right was revoked{_why(reason)}"
        case i.StreamDefined(name=name, number=number, topics=topics, term=term):
            return f"has stream {name} (number {number}, term {term}) with the topics {_listed(topics)}"
        case i.Root(root=root, standby=standby, term=term):
            return f"names {root} as the root of term {term}" + (f", with the standby {standby}" if standby else "")


def sentence_of(kind: str, values: Mapping[str, Any], party: str = "") -> str:
    """The sentence of a message on a status page. Values of another version are listed as they are."""
    try:
        told = sentence(msgspec.convert(dict(values), _KINDS[kind]))
    except (KeyError, msgspec.ValidationError):
        told = in_words(values)
    return f"{told} (to {party})" if party else told


def in_words(value: Any, depth: int = 0) -> str:
    """Any JSON value without brackets: names and values, separated by commas."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Mapping() | list() | tuple() if depth >= DEPTH_MAX:
            return "…"
        case Mapping():
            named = ((str(name).removeprefix("is_").replace("_", " "), each) for name, each in value.items())
            return ", ".join(
                f"{name} {in_words(each, depth + 1)}" for name, each in named if each not in ("", [], None)
            )
        case list() | tuple():
            return ", ".join(in_words(each, depth + 1) for each in value)
    return str(value)


def _words_of(name: str) -> str:
    return name.removeprefix("is_").replace("_", " ")


def _way(path: Sequence[str]) -> str:
    return " → ".join(path) or "itself"


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def _agents(agents: Sequence[i.Neighbour]) -> str:
    return _listed([f"{each.name} at {each.place}, with a load of {each.percent}%" for each in agents], "; ")


def _listed(words: Sequence[str], separator: str = ", ") -> str:
    more = len(words) - LISTED_MAX
    return separator.join(words[:LISTED_MAX]) + (f" and {more:,} more" if more > 0 else "")
