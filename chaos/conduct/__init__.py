"""Conducting a run: a cluster, its clients, the steps of a scenario, and the record of all of it.

A run goes through phases, each in the record (`PHASE`) and in the sheet:

1. *prepare*: the cluster is begun, the policy set, the queues declared; their mirrors are there.
2. *warm*: clients use it as they will.
3. *steps*: what the scenario says.
4. *calm*: every fault ends, every node serves again, clients use it as before.
5. *drain*: nothing new is published until every publish is answered; consumers go on until the queues are empty, or
   nothing comes any more.
6. *look*: clients come to their end, and what is left in each queue is read, and recorded (`LEFT`).

**Whatever happens, the record tells the truth about itself.** A phase that does not come to its end says so in the
sheet: a queue that did not run empty is not *drained*, one into which nobody could look is not *known*, and then the
judge concludes nothing from what is missing. A client process that ends when it should not breaks the run, and its
record has no end. So a run that proves nothing cannot be taken for one that went well.

Whoever conducts is a recording process itself, number 1 of the roster.
"""
