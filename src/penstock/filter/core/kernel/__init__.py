"""The compiled core of a filter module: matching, conditions, consumers, rewriting of packets, accounts."""
