"""The console as a process: HTTP, browsers, the pages of nodes, the actions of operators."""
