"""An agent without I/O: state machines with events and instructions, and the compiled kernels.

agent.py is the entry point: it passes each event to the part that owns the matter. events.py has the events and
instructions, control.py and infostream.py the messages between agents, kernel/ the data path, root/ the tasks of a root
and its standby.
"""
