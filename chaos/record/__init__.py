"""What happened in a run, written down so that nobody can argue with it.

A run is judged from its *record*: one row for each event, in one schema (`chaos.record.schema`), whoever writes it: the
clients, the nodes of a cluster that tells (taps), those who do harm, a simulation, a generator. This package holds what
a row means; what follows from rows is defined in `chaos.judge`.

**Processes.** Everything is recorded by a process: one life of one recorder. It numbers its events densely from 1 and
ends with `Kind.PROCESS_END`. The *roster* in the run's file names every process that was begun, before it is begun. So
a hole, a missing end and a missing process are all visible, and what would have to be concluded from an absence is not
concluded then. What is *there* proves what it proves, whatever else is missing.

**Time.** An event happened within ``[t_lo_us, t_hi_us]``, microseconds since the Unix epoch on the clock of the run:
the monotonic clock of the machine that conducts it, tied to the calendar once, so that a step of the wall clock moves
nothing. All processes of that machine share it. "x before y" is only ever claimed within one process (by event number),
or where ``x.t_hi_us < y.t_lo_us``.

**Order that recorders promise.** `PUBLISH` is recorded before the bytes are handed to the connection, `DELIVER` before
anything is done with the message, `ACK`, `REQUEUE` and `DISCARD` before the frame is handed to the connection.
`RELEASE` tells of each message that a channel held when it went: held, in its interval, no more.

**Proof.** An acknowledgement has no answer. So a client asks for something that is answered behind it on the same
channel, and records `ACK_PROVEN` when the answer comes: whoever leads the queue has heard the acknowledgement. It says
nothing of those who follow.
"""
