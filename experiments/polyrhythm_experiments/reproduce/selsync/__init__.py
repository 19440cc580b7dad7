"""SelSync: its table 1 and figures 9, 10 and 12, run again."""
