"""`penstock pub`: one command, on a channel or on a distribution tree."""
