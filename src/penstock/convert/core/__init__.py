"""From a converter table's document to a plan: formats, expressions, functions, targets, and the compiler of steps."""
