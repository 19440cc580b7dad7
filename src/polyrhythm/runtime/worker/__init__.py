"""The worker: a training loop as a member of a job.

What it is for: `session` is what a user calls; `loader` deals out the job's data; `worker` follows the coordinator
between the steps, in one of three modes (`parameter_server`, `synchronous`, `local_steps`); clients talk to the
coordinator and the shards.
What comes in: a model, an optimizer and a data set; messages of the coordinator.
What goes out: gradients, reports, exchanges of replicas; the loop itself stays as it was written.
It decides nothing but what every rank can decide by itself (`schedule`).
It imports `wire`, `collectives`, `checkpoint`, `launch` (to find its job), `core`, `policies`, `training` and
`telemetry`; never `server`, `coordinator` or `script`.
"""
