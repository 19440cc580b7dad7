"""Learned synchronization policies: random instances, an environment over the simulator, and DQN."""
