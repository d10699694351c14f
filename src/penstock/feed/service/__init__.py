"""The stream service of an adapter: subscribers over TCP, each with what it asks for and is granted.

core.py decides, driver.py has the connections, published.py takes apart what was published.
"""
