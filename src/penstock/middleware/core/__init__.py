"""Publisher, receiver and merger without I/O: events in, instructions out, time as an argument. Read events.py."""
