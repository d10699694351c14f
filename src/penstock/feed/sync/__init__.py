"""How the adapters of a feed keep together, so that any of them can go on for the active one.

Read synchroniser.py first: membership.py has the roles, election.py who takes over, follower.py a backup's comparison,
flow.py what is held back meanwhile, repair.py states on their way; peering.py has the connections.
"""
