"""A feed adapter on real sockets, threads and disks; players of an exchange (play/); clients of a feed.

driver.py puts an adapter together, data_path.py is its data thread. sources.py and stream_sources.py receive source
streams, outbound.py publishes, peering.py connects the adapters of a feed, subscriber_server.py serves subscribers,
administration.py talks to the administration server, recorder.py writes the journal.
"""
