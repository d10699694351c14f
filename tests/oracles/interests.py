"""Reference for the interest table: every interest is tried on every topic.

It parses interests itself and shares no code with penstock.topics. Its input must be well-formed interests.
"""

import re


def level_matches(pattern: str, level: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("["):
        low, high = pattern[1:-1].split("..")
        if not re.fullmatch("0|[1-9][0-9]*", level) or int(level) >= 2**64:
            return False
        return int(low or 0) <= int(level) <= int(high or 2**64)
    if pattern.endswith("*"):
        return level.startswith(pattern[:-1])
    return pattern == level


def split_pattern(pattern: str) -> list[str]:
    return re.findall(r"(?:\[[^]]*\]|[^.])+", pattern)


def matches(interest: str, topic: str, tags: tuple[str, ...] = ()) -> bool:
    """True if the interest, without a leading '!', matches the message."""
    if interest.startswith("#"):
        return interest[1:] in tags
    if interest.startswith("/"):
        return re.fullmatch(interest[1:-1], topic) is not None
    patterns, levels = split_pattern(interest), topic.split(".")
    if patterns[-1] == ">":
        patterns.pop()
        if len(levels) <= len(patterns):
            return False
        levels = levels[: len(patterns)]
    return len(patterns) == len(levels) and all(map(level_matches, patterns, levels))


class OracleTable:
    def __init__(self) -> None:
        self.interests: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        return len(self.interests)

    def add(self, interest: str, subscriber: int) -> bool:
        is_new = (interest, subscriber) not in self.interests
        self.interests.add((interest, subscriber))
        return is_new

    def remove(self, interest: str, subscriber: int) -> bool:
        was_there = (interest, subscriber) in self.interests
        self.interests.discard((interest, subscriber))
        return was_there

    def remove_subscriber(self, subscriber: int) -> int:
        gone = {pair for pair in self.interests if pair[1] == subscriber}
        self.interests -= gone
        return len(gone)

    def match(self, topic: str, tags: tuple[str, ...] = ()) -> list[int]:
        wanted, unwanted = set(), set()
        for interest, subscriber in self.interests:
            if interest.startswith("!"):
                if matches(interest[1:], topic, tags):
                    unwanted.add(subscriber)
            elif matches(interest, topic, tags):
                wanted.add(subscriber)
        return sorted(wanted - unwanted)
