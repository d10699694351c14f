"""The core of a message router. Read events.py first, then router.py; _tables.pxd for the state in memory, _records.pxd
for the records on the disk."""
