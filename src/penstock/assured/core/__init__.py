"""State machines and compiled kernels of assured messaging, without I/O: time and randomness are arguments.

router/     a message router: publish, store, queue, deliver, settle, delete
pair/       an active and a standby router: replication, resynchronisation, degradation, planned switches
lease/      selection of the active router: three voters and the holder of their lease
session/    a client's session with the active router, over successive links
"""
