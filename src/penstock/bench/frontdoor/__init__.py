"""The public API as a program written from the README uses it; peers in the same run."""
