"""`penstock sub`: one command, and a module for each kind of source: channel, tree, node, administration server."""
