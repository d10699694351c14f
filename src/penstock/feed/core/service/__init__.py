"""The stream service of an adapter: sends each subscriber over TCP the messages that it requests and may receive.

service.py decides, published.py decodes the published packets, selection.py matches topics, accounts.py counts.
"""
