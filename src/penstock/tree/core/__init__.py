"""An agent without I/O: state machines that are told events and return instructions, and the compiled kernels.

agent.py is the way in: it hands each event to the part that owns what the event is about. events.py has the events and
instructions, control.py and infostream.py the messages between agents, kernel/ what happens to packets, root/ what only
a root or its standby does.
"""
