"""How long steps of any size take, and the shares of a mini-batch that follow from it."""
