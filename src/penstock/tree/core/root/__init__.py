"""The root of a tree and its standby: sequencing, replication, and acknowledgements to publishers."""
