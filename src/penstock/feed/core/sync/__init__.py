"""Synchronisation of the adapters of a feed, so that any of them can take over from the active one.

Read synchroniser.py first: membership.py has the roles, election.py decides who takes over, follower.py compares a
backup with the active adapter, flow.py converts one source stream or holds it back, image_transfer.py sends conversion
states between adapters.
"""
