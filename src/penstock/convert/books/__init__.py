"""The conversion state: instruments, books, orders and trades; its digest and its images. state.py is the way in."""
