"""The wire: bytes, messages and waiting, for every process of a job.

What it is for: one message format, its connections over Unix sockets and TCP, the readiness loop of a thread, who may
connect, vectors in shared memory, and the words that processes say to each other.
What comes in: bytes of a socket; messages (`protocol`: workers and the coordinator; `shard_protocol`: workers and
parameter shards) from whoever sends.
What goes out: checked messages, and payloads written where their reader wants them.
It decides nothing: no policy, no optimizer, no process group. Nothing here unpickles, and no length is believed before
it is checked.
It imports `core`, `policies`, `training` (names of settings and number formats) and `telemetry`; never another room of
the runtime.
"""
