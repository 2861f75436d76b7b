"""Clusters that are judged: how one is begun, hurt, asked, and cleared away, whatever broker it is of.

A scenario is an outsider. It knows where clients connect, which nodes there are, what may be done to them, and what an
operator may ask. `chaos.targets.target` says so in types; each module beside it answers for one kind of cluster:

- processes of this machine that run Warren;
- containers that run Warren;
- processes of this machine that run RabbitMQ;
- any cluster of which somebody tells, in a file, the addresses and the commands that hurt and heal its nodes.

Nothing outside this package knows which it is. What a target cannot do or tell it does not offer
(`Target.capabilities`), and a scenario that needs it is skipped with that reason, before anything begins.

**What a target promises.** A method that changes something returns when the change has taken place: after `kill` the
process is gone, after `start_node` it exists (it may still be starting: `wait_ready`). Names and addresses stay what
they are across restarts. `close` leaves nothing behind, may be called twice, and after a failure half way through.
Whatever outlives this process if it is killed (processes, containers, proxies, mounts, stopped processes) is in the
journal of the run before it is made (`chaos.harm.journal`), so that it can be cleared away later
(`chaos.harm.undoers`). tests/integration/chaos/test_targets.py holds every kind to these promises.

**What takes preparation** is made only for a scenario that needs it (the second argument of `Target.start`): proxies
are on the way of every byte, and a disk of limited size is not the machine's own.
"""
