"""Conversion: source messages of any feed become application messages as a converter table defines.

A table is compiled to a plan; the same compiled code runs the plan for a single message and for a batch. This package
knows nothing of sockets, lines or subscribers (see penstock.feed). Read table.py first, then converter.py; core/
compiles a table to a plan, kernel/ runs the plan, books/ has the conversion state. docs/how-to/converting.md describes
the language of the tables.
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
