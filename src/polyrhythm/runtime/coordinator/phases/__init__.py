"""The kinds of phase: what the coordinator runs while one policy is in force.

Each takes the messages that its workers send, runs the policy by the driver of `core`, and carries out what it decides.
The coordinator asks all of them the same, as `phase_kind` says.
"""
