"""What is said to the master of one queue elsewhere, as long as the link to it has no room.

A link breaks under too much (`cluster.transport.outbox`), and so it would under the next attempt, for ever. So what an
entry node says in one message is bounded (`FRAME_BYTES_MAX`), and how much it says depends on the room that the link
has. The rule:

- Publishes go out while the link is not congested. The rest begins the *backlog* of the route.
- While a route has a backlog, **whatever else is said to its master goes to the end of it**: newer publishes,
  settlements, grants, questions, the ends of channels. So the order of a session is that in which things were said, as
  over a link that is merely slow, and no rule above (`cluster.sessions.entry`) has to know of it.
- When the link is free the backlogs go on, one route after the other, until it is congested again. Its channels wait
  for the link (`cluster.sessions.credits`) until no backlog is left, so no more is added than a batch for each.
- What an earlier session has carried may be answered in this one while it waits to be carried again. Then it goes out
  no more (`Backlog.forget`): whoever is answered has had the message from its master, or is not to have it. Its credit
  is given back then, as the master counts what it gets in this session, and will not get this.
- A backlog is part of its session and ends with it. Settlements, grants and ends of channels mean nothing in the next
  session, and those who asked are told; the publishes of open channels are among the unconfirmed ones, of which those
  that were never sent are the last; those of closed channels join the untracked (`Route.lose`).

Other words than publishes are small: they wait for the order only, and no backlog begins with one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from cluster.sessions.messages import SessionMessage, SessionPublish
from node.ids import QueueId
from node.message import Message

#: Bytes of envelopes in one message, unless one AMQP message alone has more. As of the frames of mirroring.
FRAME_BYTES_MAX = 4 * 1024 * 1024


class Publishes:
    """Publishes of one channel on their way, packed when they go out."""

    __slots__ = ("_done", "_messages", "_publish_seqs", "channel_id", "is_resent")

    def __init__(
        self, channel_id: int, publish_seqs: Sequence[int], messages: Sequence[Message], is_resent: bool
    ) -> None:
        self.channel_id = channel_id
        self.is_resent = is_resent
        self._publish_seqs = publish_seqs
        self._messages = messages
        #: So many of them have gone out.
        self._done = 0

    @property
    def is_over(self) -> bool:
        """All have gone out."""
        return self._done == len(self._messages)

    @property
    def publish_seqs(self) -> Sequence[int]:
        """Of those that are left; 0: nobody waits for the confirm."""
        return self._publish_seqs[self._done :]

    @property
    def messages(self) -> Sequence[Message]:
        """Those that are left."""
        return self._messages[self._done :]

    def forget(self, publish_seqs: Collection[int]) -> int:
        """These are answered. Returns how many of them were left."""
        before = len(self.messages)
        left = [each for each in zip(self.publish_seqs, self.messages, strict=True) if each[0] not in publish_seqs]
        self._publish_seqs = [seq for seq, _ in left]
        self._messages = [message for _, message in left]
        self._done = 0
        return before - len(left)

    def next_frame(self, queue_id: QueueId, session: int) -> SessionPublish:
        """As many of those that are left as fit into one message."""
        envelopes: list[bytes] = []
        size_bytes = 0
        first = self._done
        for message in self.messages:
            envelope = message.envelope()
            size_bytes += len(envelope)
            if size_bytes > FRAME_BYTES_MAX and envelopes:
                break
            envelopes.append(envelope)
        self._done = first + len(envelopes)
        seqs = self._publish_seqs[first : self._done]
        return SessionPublish(queue_id, session, self.channel_id, seqs, b"".join(envelopes), self.is_resent)


class Backlog:
    """See the top of this module. In order."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words: deque[Publishes | SessionMessage] = deque()

    def __len__(self) -> int:
        return len(self._words)

    def add(self, word: Publishes | SessionMessage) -> None:
        assert self._words or isinstance(word, Publishes), "what is small does not wait but for order"
        self._words.append(word)

    def next_word(self, queue_id: QueueId, session: int) -> SessionMessage:
        """Taken out."""
        word = self._words[0]
        if isinstance(word, Publishes):
            frame = word.next_frame(queue_id, session)
            if word.is_over:
                self._words.popleft()
            return frame
        self._words.popleft()
        return word

    def forget(self, channel_id: int, publish_seqs: Collection[int]) -> int:
        """These are answered. What no session has carried is not among them. Returns how many waited here."""
        resent = [each for each in self.publishes() if each.is_resent and each.channel_id == channel_id]
        forgotten = sum([publishes.forget(publish_seqs) for publishes in resent])
        if any(publishes.is_over for publishes in resent):
            self._words = deque(word for word in self._words if not (isinstance(word, Publishes) and word.is_over))
        return forgotten

    def publishes(self) -> Iterator[Publishes]:
        """In order."""
        return (word for word in self._words if isinstance(word, Publishes))

    def clear(self) -> list[Publishes]:
        """The session is over: what it has not carried."""
        left = list(self.publishes())
        self._words.clear()
        return left
