"""State machines and compiled kernels of assured messaging. They do no I/O: time and randomness are arguments.

router/     a message router: publish, store, queue, deliver, settle, delete
pair/       two routers of which one is active: replication, resynchronisation, degradation, planned switches
lease/      which of the two is active: three voters and the holder of their lease
session/    a client's connection to the active router, over any number of links
"""
