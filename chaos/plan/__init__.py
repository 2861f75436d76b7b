"""Scenarios as data: files that say what is done to a cluster, when, to whom, and what must hold.

A scenario is a TOML file that reads like a sentence of a catalogue:

    id = "K01"
    title = "The master is killed under load"
    holds = "Nothing is lost, every publish is answered"

    [cluster]
    nodes = 3
    policy = { ha-mode = "all", ha-sync-mode = "automatic" }

    [[queue]]
    name = "orders"

    [load]
    rate = 500

    [[round]]
    times = 3
    [[round.step]]
    do = "stop consumers"
    [[round.step]]
    when = "ready of orders >= 2000"
    do = "kill"
    to = "master of orders"
    [[round.step]]
    when = "failovers of orders >= 1"
    do = "start consumers"
    [[round.step]]
    after = "3 s"
    do = "heal"

**Who is who.** A scenario knows a cluster as its users do: queues, the nodes they are on, lines between nodes and from
clients. It says "master of orders", and who that is, is found out when the step is taken. So the same file runs on
processes of this machine, on containers, and on a cluster of another broker; what a target lacks for it is known before
anything begins (`Scenario.needs`), and then it is skipped, with the reason.

**Steps** are taken one after the other. ``when`` waits until a condition holds (not longer than ``within``; that it
did not come to pass is a result: NOT REACHED), ``after`` waits so long since the step before; with both, the condition
comes first. A fault stays until it is healed: by a step ``heal`` (all faults, or the one that ``what`` names by its
step's ``name``), ``for`` so long while the next steps go on, or at the end, before the queues are drained.

**Counts of a round.** ``confirmed``, ``delivered``, ``failovers`` and ``redelivered`` in a condition are counted since
the round began, so a round means the same each time.

Reading a file checks all of it: a word that is not known, a queue that is not there, an argument that an action does
not take, is an error that names the file, the place and what would be right. Nothing here runs anything.
"""
