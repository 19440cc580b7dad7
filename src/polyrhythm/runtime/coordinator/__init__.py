"""The coordinator: which worker may do what next, and the process that holds a job together.

What it is for: `coordinator` runs one job without sockets, tensors or clocks; each kind of phase (on the parameter
servers, synchronous, with local steps) is a file of its own; `server` is the process around it.
What comes in: messages of workers (`wire.protocol`), losses of connections, a request to switch the policy.
What goes out: messages to workers, `Apply` and `Drop` to the shards, one trace a phase.
What a policy decides is carried out in `core.driver`'s order; nothing here looks into a policy's class.
It imports `wire`, `server`, `checkpoint`, `core`, `policies`, `training` and `telemetry`; never `collectives`,
`launch`, `worker` or `script`.
"""
