"""The parts that every node has: a driver composes them and adds what is its own.

- `node.Node` owns the life of a process: counters and the HTTP page, the parts in their order of start, supervised
  tasks, calls from other threads, administration tokens, and the shutdown. Every shutdown step is logged and bounded.
- `core_node.CoreNode` runs a core as a part of a node: refused events, failures, expired rights, and the list
  of recent happenings.
- `accounts.AccountRecorder` writes the account rows of a subsystem to a journal: changes per period, and a closing
  record at the end.

A driver makes its parts, adds them to its node in order, and carries out the instructions of its core.
"""
