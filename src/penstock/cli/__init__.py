"""The `penstock` command: one file per command group, assembled in main.py. It holds no logic of its own."""
