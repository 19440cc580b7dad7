"""RLP, the learned policy: the policy itself, its network as a file, and what it sees of a cluster."""
