"""The stream service of an adapter: subscribers over TCP, each with the messages that it asks for and is granted.

service.py decides, published.py decodes the published packets, selection.py matches topics, accounts.py counts.
"""
