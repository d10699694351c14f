"""Drivers of an agent: sockets, threads, disks. Read driver.py first."""
