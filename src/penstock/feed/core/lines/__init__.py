"""Line arbitration: merges several lines of a source stream, each message once and in order. Read arbiter.py."""
