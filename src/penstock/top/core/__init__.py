"""From status pages to a picture of the plant, without I/O."""
