"""Live message routers and witnesses: sockets, threads, disks, and the drivers of the cores. Read driver.py first."""
