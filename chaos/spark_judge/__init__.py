"""Judges records of any size with Spark, by the definitions of `chaos.judge`.

Written apart from `chaos.judge.reference`, which is plain and keeps all in memory; both must find the same.

**Flow.** A record of a hundred million rows is read a few times and shuffled once:

1. `record`: the numbers of all events of each process say whether the record is complete; what is told of queues
   (promotions and the like) is little, is collected, and goes into the plans as a table of literals.
2. `rollup`: one row for each message, of numbers only. Nine in ten messages or more are *plain*: published once,
   delivered once, settled once. Their row says everything.
3. `uncommon`: of the others all rows are read again and brought together in arrays, over which the definitions that
   speak of several deliveries are written.
4. `classes`, `order`, `rows`: what is found of messages, of their order, of single rows.

**Rules.** Spark's own expressions only: executors need no Python. Transforms are functions from frames to frames;
`judge` alone runs jobs. Keys are numbers, so that sorting and hashing stay in place. Paths are URIs, whatever Spark can
read. What cannot be judged is said (`Judgement.unjudged_messages`, `Judgement.not_concluded`).
"""
