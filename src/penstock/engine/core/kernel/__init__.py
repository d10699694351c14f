"""The compiled data path of an engine: items, pairs of a consumer and an item, and the three transmission classes."""
