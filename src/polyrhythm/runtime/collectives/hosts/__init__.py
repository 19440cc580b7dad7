"""Sums and broadcasts of members on several hosts: in memory on each host, over gloo among one member of each."""
