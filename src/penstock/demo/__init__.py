"""A whole plant on this machine: an exchange, two adapters, an administration server, subscribers, one that watches.

    layout        writes the plant's documents: plant.toml, the policy, everybody's credentials
    subscriber    a process that subscribes as any client does, and measures
    plant         starts everything, gathers what the processes tell, kills the active adapter if told to, ends it all
    generator     made-up quotes for `penstock pub`, and schedule.py, when each is due

Read plant.py first. Nothing here is needed to use Penstock; it shows how it is used.
"""
