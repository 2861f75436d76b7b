"""How many clients a node lets in, by the descriptors that it has.

A connection takes one. So do the files of queues (two to six for each in use), shared stores and logs, the links with
other nodes and the operators; of these nothing bounds the number but what the cluster is used for. A node whose
descriptors are all with clients, or with strangers who only knock, can neither open a queue nor answer a peer. So the
clients get less than half of them: `ARRIVING_MAX` of their half are left for those who are let in and dropped again at
once, because there are too many.

What strangers hold at the cluster's listener is not counted: gRPC has no bound for it.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A connection costs a descriptor and some tens of kilobytes.
CONNECTIONS_MAX = 50_000
#: Of these so many may be in their handshake, strangers among them: more than come back at once after a failover, and
#: in memory some tens of megabytes.
HANDSHAKES_MAX = 2048
#: Connections that one turn of the loop may bring, and the next before those of this one are closed: twice the backlog
#: of the listener.
ARRIVING_MAX = 256
#: Where there are hardly more descriptors than arrive at once, clients get this part of them.
LEAST_PART = 8


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """See the top of this module."""

    #: Descriptors of this process, for everything.
    open_files: int
    connections: int
    #: Of these, in their handshake.
    handshakes: int

    @property
    def shortage(self) -> str:
        """What to tell the operator of a node that lets in fewer clients than others do; empty if it does not."""
        if self.connections == CONNECTIONS_MAX:
            return ""
        return (
            f"at most {self.connections} client connections are let in, not {CONNECTIONS_MAX}: this process may have "
            f"{self.open_files} files open, and {self.open_files - self.connections} of them are kept for the files "
            f"of this node and for its peers; raise the limit of open files to {2 * (CONNECTIONS_MAX + ARRIVING_MAX)} "
            "(`ulimit -Hn`, LimitNOFILE of systemd) if more clients are to be served"
        )


def client_bounds(open_files_max: int) -> ClientBounds:
    """For a process that may have so many files and sockets open."""
    wanted = max(1, open_files_max // LEAST_PART, open_files_max // 2 - ARRIVING_MAX)
    connections = min(CONNECTIONS_MAX, wanted)
    # Of strangers fewer than that: those who have come in stay, and there is room for others to follow them.
    handshakes = min(HANDSHAKES_MAX, max(1, connections // 2))
    return ClientBounds(open_files_max, connections, handshakes)
