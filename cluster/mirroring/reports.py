"""What a master asks its node to do about its mirrors: proposals to the metadata group, made by the runtime."""

from __future__ import annotations

from dataclasses import dataclass

from node.ids import Epoch, NodeName


@dataclass(frozen=True, slots=True)
class ReportSynchronised:
    """The mirror lacks nothing: the record may call it synchronised.

    The command that is proposed must name the epoch, and must survive neither a removal of the mirror from the record
    nor the life of its node: the claim is about the copy that was there when it was made. So it names the index of the
    log that this queue had followed then (`MirrorSynchronised.as_of_index`). From the moment of this report until the
    mirror leaves the record no publish is confirmed without it, so the command may commit at any time. Repeated while
    the record does not show it.
    """

    node: NodeName


@dataclass(frozen=True, slots=True)
class ReportFollows:
    """The mirror lacks something, and hears of every operation from now on. Repeated as above."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class ReportTakesService:
    """This node is ready to serve as the master that the record names, without the complete copies that are not among
    its mirrors. It confirms nothing before the record shows it."""


@dataclass(frozen=True, slots=True)
class ReportFenced:
    """A mirror knows a higher epoch: this mastership is over, nothing is delivered or confirmed any more."""

    known_epoch: Epoch


@dataclass(frozen=True, slots=True)
class ReportMirrorStalled:
    """The mirror owes an answer for too long (or has no link): confirms wait for it until the record drops it."""

    node: NodeName


#: What is said of one mirror.
MirrorReport = ReportSynchronised | ReportFollows | ReportMirrorStalled
MirroringReport = MirrorReport | ReportTakesService | ReportFenced
