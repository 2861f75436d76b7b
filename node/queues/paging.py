"""How much of a queue is in memory: its target, and the steps by which it gets there.

Without pressure, everything that came since the queue was opened stays in memory. The node's memory monitor
asks every queue for its *duration* (`node.queues.rates`) and sets one for all; it becomes `target_ram_count`, above
which messages are paged out: the newest alphas, or the oldest pending acks if these grow faster. Page-outs ride
on publishes and fetches (`operated`); what is left is done by whoever calls `page_out`.
"""

from __future__ import annotations

import math

from node.queues.content import Content
from node.queues.rates import QueueRates
from node.queues.stages import PAGE_OUT_MESSAGES
from node.queues.writes import Writes

#: Operations (messages published, inserted or fetched) between two looks at whether something must be paged out
#: (RabbitMQ: ``ram_pending`` operations).
OPERATIONS_PER_LOOK = 1000


class Paging:
    """See the module text."""

    __slots__ = (
        "_content",
        "_is_durable",
        "_operations",
        "_target_duration_s",
        "_writes",
        "rates",
        "target_ram_count",
    )

    def __init__(self, content: Content, writes: Writes, *, is_durable: bool) -> None:
        """``is_durable``: of the queue."""
        self._content = content
        self._writes = writes
        self._is_durable = is_durable
        self.rates = QueueRates()
        self._target_duration_s = math.inf
        #: Alphas and unacked bodies that may be in memory; ``None``: no limit.
        self.target_ram_count: int | None = None
        self._operations = 0

    def operated(self, count: int) -> None:
        """So many messages moved: now and then look whether something must be paged out."""
        if self.target_ram_count is None and not self._content.stages.is_lazy:
            return
        self._operations += count
        if self._operations >= OPERATIONS_PER_LOOK:
            self._operations = 0
            self.page_out()

    def read_ahead(self) -> int:
        """Bodies worth having ready, by the rate of consumption; fewer if memory is short."""
        ahead = 1 + int(2 * self.rates.egress.per_s)
        return ahead if self.target_ram_count is None else min(ahead, self.target_ram_count)

    def ram_duration_s(self, now_ms: int) -> float:
        """How long the messages in memory last at the present rates; infinite for an idle queue."""
        content = self._content
        duration_s = self.rates.duration_s(now_ms, content.stages.ram_count, content.unacked.ram_count)
        self.target_ram_count = self.rates.target_ram_count(self._target_duration_s)
        return duration_s

    def set_target(self, duration_s: float) -> None:
        """Keep no more in memory than lasts so long; infinite: no limit."""
        self._target_duration_s = duration_s
        self.target_ram_count = self.rates.target_ram_count(duration_s)

    def page_out(self) -> bool:
        """Move one bounded step of messages out of memory if there are too many. True if there is more to do."""
        stages, unacked = self._content.stages, self._content.unacked
        target = self.target_ram_count
        has_more = False
        if target is not None and unacked.ram_count:
            excess = stages.ram_count + unacked.ram_count - target
            rates = self.rates
            # What grows faster gives way first.
            grows_faster = rates.ack_in.per_s - rates.ack_out.per_s > rates.ingress.per_s - rates.egress.per_s
            if excess > 0 and (grows_faster or stages.ram_count < excess):
                share = excess if grows_faster else excess - stages.ram_count
                has_more = share > PAGE_OUT_MESSAGES
                self._page_out_unacked(min(share, PAGE_OUT_MESSAGES))
            target = max(0, target - unacked.ram_count)
        has_more = stages.page_out(target) or has_more
        if self._content.index.has_unflushed and not self._writes.has_called_for_flush:
            self._writes.call_for_flush()
        return has_more

    def _page_out_unacked(self, count: int) -> None:
        """Give up the bodies of the oldest pending acks."""
        index = self._content.index
        paged = self._content.unacked.page_out(count, is_durable=self._is_durable)
        unwritten = {seq_id: message for seq_id, message in paged.items() if not index.is_live(seq_id)}
        if unwritten:
            index.publish(unwritten)

    @property
    def is_active(self) -> bool:
        """True if there may be something to page out, or to free."""
        stages = self._content.stages
        return self.target_ram_count is not None or stages.is_lazy or stages.has_purged

    @property
    def moved(self) -> int:
        """Messages and positions that page-outs have moved so far."""
        return self._content.stages.moved + self._content.unacked.moved
