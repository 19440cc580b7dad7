"""Checkpoints of a whole job: what is kept, how it is written and verified, and how a job goes on from it.

What it is for: which checkpoint a phase begins with (`snapshots`), the coordinator's part of one (`manifest`, `keeper`,
`service`), the worker's (`replica_state`, `saver`, `streams`), and the files of both (`folder`, `tensor_file`);
`returned` is what workers tell a coordinator that takes the place of one that has died.
What comes in: the position of a job between two phases, the model and the optimizer of a worker, a folder.
What goes out: folders that are whole or not there, and the state from which a job goes on.
It decides nothing about when a phase begins or ends.
It imports `wire`, `core`, `policies` and `training`; never another room of the runtime.
"""
