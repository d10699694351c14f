"""Filter expressions over message models: SQL conditions compiled to predicates over record bytes.

Read expression.py for what can be written, lowering.py for what it becomes.
"""

from penstock.topics.predicate import Predicate

__all__ = ["Predicate"]
