"""Derived tables: what follows from the normalised ones, step by step or all at once, with the same rows either way.

A derivation is given the rows of one step and gives the rows that follow from them. Batch is one step that is final;
streaming is many, of which the last is final (the end of the day). What a derivation must remember from step to step it
gives as rows of the table CARRIED: they are archived with the step's commit, and the next step is given them.

docs/derived-tables.md has every table and column, and the exact rules.
"""

from penstock.spark.pipeline.derive.protocol import CARRIED, Derivation, Output, Step, TableWork, table_frame

__all__ = ["CARRIED", "DERIVATIONS", "Derivation", "Output", "Step", "TableWork", "table_frame"]

DERIVATIONS: tuple[Derivation, ...] = ()
"""Those that the pipeline makes unless told otherwise, in their order."""
