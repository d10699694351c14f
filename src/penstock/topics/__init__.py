"""Who wants a message: topics, interests in topics, and conditions on a message's content.

`InterestTable` says which subscribers want a topic; `Predicate` says whether a record meets a SQL condition. Neither
knows networks: a topic is text, a subscriber a small number, a record bytes. Read interest.py first for what can be
written, then table.py and _store.pxd for the table, expression.py and lowering.py for conditions. `GroupMap` says on
which multicast group a topic flows.
"""

from penstock.topics.groups import GroupMap
from penstock.topics.interest import Interest, InterestKind
from penstock.topics.predicate import Predicate
from penstock.topics.table import InterestTable, TableLimits
from penstock.topics.topic import check_topic

__all__ = ["GroupMap", "Interest", "InterestKind", "InterestTable", "Predicate", "TableLimits", "check_topic"]
