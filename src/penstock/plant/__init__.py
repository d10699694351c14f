"""The nodes around the distribution engine: ticker plant, connection multiplexer, edge cache."""
