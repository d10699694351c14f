"""Line arbitration: several lines of a source stream in, each message once and in order out. Read arbiter.py."""
