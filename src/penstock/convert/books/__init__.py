"""The conversion state: instruments, books, orders and trades; its digest and its images. Read state.py first."""
