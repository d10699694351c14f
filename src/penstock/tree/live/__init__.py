"""What runs an agent: sockets, threads, disks. driver.py is the way in."""
