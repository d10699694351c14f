"""The distribution engine without I/O: the state machine, the class rules, and the compiled kernel.

events.py has the events and instructions, engine.py handles them. subscriptions.py knows who subscribed to what,
class_selection.py in which class a consumer gets an item, interests.py applies both to the kernel. kernel/ has the
compiled data path.
"""
