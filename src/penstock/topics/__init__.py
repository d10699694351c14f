"""Topics and interests: the grammar, and the compiled table that says who wants a message.

It knows neither messages nor networks: a topic is bytes, a subscriber a small number. Read interest.py first: it shows
what can be written; then table.py for how it is used and _store.pxd for how it is laid out in memory.
"""

from penstock.topics.interest import Interest, InterestKind
from penstock.topics.table import InterestTable, TableLimits
from penstock.topics.topic import check_topic

__all__ = ["Interest", "InterestKind", "InterestTable", "TableLimits", "check_topic"]
