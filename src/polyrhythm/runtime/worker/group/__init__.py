"""Replica groups: several processes with one model among them, sharded by FSDP2, are one worker of the job.

The first process of a group, its leader, is the worker that the coordinator knows. What it hears it tells the others,
and all make the same steps. Between groups each process meets those of the same place, which have the same shard.
"""
