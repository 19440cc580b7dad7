"""Collectives among workers: process groups that come and go, and sums that never raise.

What it is for: the group of one membership (`membership`), torch's view of it across changes (`switchable_group`),
sums in shared memory with gloo's bits (`shared`), sums over the servers, averages of replicas
(`model_averaging`), and the health of a group when a member dies.
What comes in: tensors of a module, the members of a phase, a `Sync`.
What goes out: the same tensors with the sum or mean in place, or a failure that is noted (`group_health`) and never
raised inside a backward pass.
It does not know who decided, or when a step is due.
It imports `wire`, `core` and `training`; never `server`, `coordinator`, `launch`, `worker` or `script`.
"""
