"""Real worker processes: connections, parameter shards, the coordinator and the session.

The data plane, from the wire up:

- `frames`: the message format and its parser, without input and output;
- `channel`: one non-blocking connection, addresses, ``listen(address, token)``; `loop`: ``Loop.add(channel, handler)``,
  ``listen``, ``call_later``, ``run``, ``run_until(done, timeout_s)``, ``stop``;
- `handshake`: ``Acceptor(loop, listener, job, token, decoder, admit)`` on the server, where ``admit(channel, hello)``
  returns the newcomer's handler or raises; ``join(loop, address, hello, decoder, handler)`` on the other side;
- `messages`: what is said. A server that also speaks another language gives its channels a decoder of the union,
  ``msgspec.msgpack.Decoder(Hello | ToShard | ToHub)``;
- `shard`: parameters and optimizer; `all_buffers`, `service`: how workers reach them; `shards`: all shards of a job;
  `client`: a worker's side.

A coordinator keeps one ``ShardGroup(count, arrived, compensation, allowed)``, whose ``service`` is shard 0, in its own
process, and starts a `ShardProcess` for each further shard. The handler of a worker's channel hands every `ToShard`
message to ``service.received(worker, channel, message)`` and every payload to ``service.place(worker, message,
payload)``; when the channel is lost it calls ``service.lost(worker, channel)``, and ``group.forget(worker)`` once the
policy knows. ``arrived(worker, number)`` says that a gradient is held by every shard; then `Apply` or `Drop` through
the group say what becomes of it. An `Apply` also answers workers that wait for its version.

A worker makes one `Loop` and one ``ShardClient(loop, rank, control)``; ``connect`` once for each shard (the first
connection is also that to the coordinator, whose other messages go to ``control``), then ``open``, ``push``, ``pull``,
``upload``, ``download``; ``wait(done, phase)`` for anything else that must come.
"""
