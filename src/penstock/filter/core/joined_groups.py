"""The multicast groups that a filter module has joined: those that interests of applications need, and no others."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from penstock.base.errors import LimitError
from penstock.filter.core.consumers import Application, Consumer


class Changes(msgspec.Struct):
    """The result of a change: newly needed groups, and groups that are no longer needed."""

    joined: list[int] = []
    left: list[int] = []
    new_to_consumer: list[int] = []
    new_to_application: list[int] = []
    old_to_consumer: list[int] = []


class JoinedGroups:
    """Counts the users of each group: interests, applications of a consumer, consumers."""

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self._consumers: Counter[int] = Counter()
        self._retiring: list[tuple[int, int, Counter[int]]] = []  # due time, application, number of interests per group

    def __contains__(self, group: int) -> bool:
        return group in self._consumers

    def check(self, needed: Counter[int]) -> None:
        """Raise LimitError if there would be too many groups."""
        count = len(self._consumers.keys() | needed.keys())
        if count > self._groups_max:
            raise LimitError(f"{count} multicast groups would be joined", hint="raise groups_max")

    def change(
        self, application: Application, needed: Counter[int] | None = None, freed: Counter[int] | None = None
    ) -> Changes:
        """Change the count of the application's interests that need each group."""
        changes = Changes()
        for group, count in (needed or {}).items():
            if group not in application.listening:
                changes.new_to_application.append(group)
                self._add(application.consumer, group, changes)
            application.listening[group] += count
        for group, count in (freed or {}).items():
            application.listening[group] -= count
            if not application.listening[group]:
                del application.listening[group]
                self._remove(application.consumer, group, changes)
        changes.new_to_application = [each for each in changes.new_to_application if each in application.listening]
        return changes

    def retire(self, application: Application, freed: Counter[int], at_ns: int) -> None:
        """The interests no longer need these groups, but keep them joined until `at_ns`."""
        if freed:
            self._retiring.append((at_ns, application.number, freed))

    def retired(self, now_ns: int) -> Iterator[tuple[int, Counter[int]]]:
        """The applications and groups that are due."""
        due = [each for each in self._retiring if each[0] <= now_ns]
        self._retiring = [each for each in self._retiring if each[0] > now_ns]
        for _, number, freed in due:
            yield number, freed

    def forget(self, application: Application) -> Changes:
        """Release all groups of an application that has left."""
        self._retiring = [each for each in self._retiring if each[1] != application.number]
        return self.change(application, freed=application.listening.copy())

    def next_deadline_ns(self) -> int | None:
        return min((at_ns for at_ns, _, _ in self._retiring), default=None)

    def _add(self, consumer: Consumer, group: int, changes: Changes) -> None:
        if not consumer.listening[group]:
            changes.new_to_consumer.append(group)
            if not self._consumers[group]:
                changes.joined.append(group)
            self._consumers[group] += 1
        consumer.listening[group] += 1

    def _remove(self, consumer: Consumer, group: int, changes: Changes) -> None:
        consumer.listening[group] -= 1
        if consumer.listening[group]:
            return
        del consumer.listening[group]
        changes.old_to_consumer.append(group)
        self._consumers[group] -= 1
        if not self._consumers[group]:
            del self._consumers[group]
            changes.left.append(group)
