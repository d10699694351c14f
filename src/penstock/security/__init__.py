"""What the stream administration server issues and everybody else checks: credentials, policy, tokens, stream keys."""
