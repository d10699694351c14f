"""Selection of messages: topics, interests in topics, and conditions on a message's content.

`InterestTable` finds the subscribers of a topic; `Predicate` tests a record against a SQL condition. This package knows
no networks: a topic is text, a subscriber a small number, a record bytes. Read interest.py first for the syntax, then
table.py and _store.pxd for the table, expression.py and lowering.py for conditions. `GroupMap` maps topics to multicast
groups.
"""

from penstock.topics.groups import GroupMap
from penstock.topics.interest import Interest, InterestKind
from penstock.topics.predicate import Predicate
from penstock.topics.table import InterestTable, TableLimits
from penstock.topics.topic import check_topic

__all__ = ["GroupMap", "Interest", "InterestKind", "InterestTable", "Predicate", "TableLimits", "check_topic"]
