"""A complete plant on this machine: an exchange, two adapters, an administration server, subscribers and a supervisor.

    layout        writes the plant's documents: plant.toml, the policy, the credentials of all clients
    subscriber    a process that subscribes like any client, and measures
    plant         starts everything, collects reports, kills the active adapter on request, stops everything
    generator     generates quotes for `penstock pub`; schedule.py computes when each is due

Read plant.py first. Penstock does not depend on this package, which demonstrates its use.
"""
