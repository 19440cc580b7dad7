"""Real worker processes: the same policies on sockets, shared memory and torch.distributed.

Seven rooms, each of which imports only from those above it in this list:

- `wire`: bytes and messages between processes;
- `server`: parameter shards; `collectives`: exchanges among workers;
- `coordinator`: who may do what next, and the job's own process; `launch`: starts and finds a job;
- `worker`: a training loop as a member of the job;
- `script`: a training script that knows nothing of all this.

A gradient enters at `worker.session`, leaves by `wire.connection`, is held by `server.shard_service`, is decided about
in `coordinator` and is answered from the shard: docs/design.md, "The way of a push", has the files in order.
"""
