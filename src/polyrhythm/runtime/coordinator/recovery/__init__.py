"""What outlives a coordinator that is killed, and how the next one goes on from it."""
