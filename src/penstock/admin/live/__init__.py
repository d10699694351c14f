"""Drivers of the server: the database, the HTTP API and the pair of servers. driver.AdminServer is the entry."""
