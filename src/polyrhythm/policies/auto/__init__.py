"""Auto: what it measures, what it expects of each policy, how it chooses, and the policy itself."""
