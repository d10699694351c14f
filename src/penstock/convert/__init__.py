"""Conversion: source messages of any feed into application messages, as a converter table says.

A table is compiled to a plan; the same compiled code runs it for one message and for a batch. It knows nothing of
sockets, lines or subscribers (that is penstock.feed). Read table.py first, then converter.py; core/ compiles a table to
a plan, kernel/ runs it, books/ has the state that it changes. docs/how-to/converting.md is the tables' language.
"""

from penstock.convert.books.state import ConversionState, StateImage, StateLimits
from penstock.convert.checkpoint import Checkpoint
from penstock.convert.converter import Converter
from penstock.convert.core.document import TableChoice
from penstock.convert.core.format import SourceFormat
from penstock.convert.core.functions import converter_function
from penstock.convert.core.plan import Plan
from penstock.convert.kernel._converted import Converted
from penstock.convert.kernel._source import SourceBatch
from penstock.convert.table import ConverterTable, register_table, shipped_tables

__all__ = [
    "Checkpoint",
    "ConversionState",
    "Converted",
    "Converter",
    "ConverterTable",
    "Plan",
    "SourceBatch",
    "SourceFormat",
    "StateImage",
    "StateLimits",
    "TableChoice",
    "converter_function",
    "register_table",
    "shipped_tables",
]
