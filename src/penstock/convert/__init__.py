"""Conversion: source messages of any feed into application messages, as a converter table says.

A table is compiled to a plan; the same compiled code runs it for one message and for a batch. It knows nothing of
sockets, lines or subscribers (that is penstock.feed).
"""

from penstock.convert._source import SourceBatch
from penstock.convert.state import ConversionState, StateImage, StateLimits

__all__ = ["ConversionState", "SourceBatch", "StateImage", "StateLimits"]
