"""The compiled data path of an agent: frames, history, queues and fan-out, and the sequencing of published messages."""
