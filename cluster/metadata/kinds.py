"""The kinds of commands, and since which protocol there is each of them (`cluster.metadata.protocol`).

To add a command: its class, its code in `cluster.metadata.codec`, and a line here with the protocol of the next release
(`NEWEST_PROTOCOL`). A field more is a line in `ADDED_FIELDS`: it goes to the end of its class and has a default, with
which it is not written at all, so that older nodes read the rest. And if an old command is to have another effect than
before, the state machine asks `MetadataState.protocol` which of the two it has now; if only the new one makes sense,
`NEW_MEANINGS` keeps it back.

What is proposed is checked against this by `MetadataGroup.change`, and what is applied by the state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from cluster.metadata import commands
from node.topology import commands as topology
from node.topology.records import QueueRecord

#: Of the releases before commands had a protocol; of every member that has not said otherwise.
FIRST_PROTOCOL = 2
#: What this release speaks.
NEWEST_PROTOCOL = 3
#: Kind -> the first protocol whose releases know it.
SINCE: Mapping[type, int] = {
    commands.ChangeTopology: 2,
    commands.NodeUp: 2,
    commands.NodeDown: 2,
    commands.ForgetNode: 2,
    commands.AdmitNode: 2,
    commands.SetPolicy: 2,
    commands.ClearPolicy: 2,
    commands.AddUser: 2,
    commands.DeleteUser: 2,
    commands.ChangePassword: 2,
    commands.SetUserTags: 2,
    commands.SetPermissions: 2,
    commands.ClearPermissions: 2,
    commands.MirrorSynchronised: 2,
    commands.MirrorFollows: 2,
    commands.DropMirror: 2,
    commands.AddMirror: 2,
    commands.MoveMaster: 2,
    commands.TakeService: 2,
    commands.ForcePromote: 2,
    commands.FoundCluster: 2,
    commands.RaiseProtocol: 3,
    topology.CreateVhost: 2,
    topology.DeleteVhost: 2,
    topology.DeclareExchange: 2,
    topology.DeleteExchange: 2,
    topology.DeclareQueue: 2,
    topology.DeleteQueue: 2,
    topology.Bind: 2,
    topology.Unbind: 2,
    topology.NoteConsumer: 3,
}
#: Kind (or record of a snapshot) -> field -> the first protocol in which it may have another value than its default.
ADDED_FIELDS: Mapping[type, Mapping[str, int]] = {
    QueueRecord: {"was_consumed": 3},
    commands.AdmitNode: {"as_of_index": 3},
    commands.ForgetNode: {"as_of_index": 3, "is_confirmed": 3, "lost_queues": 3},
    commands.ForcePromote: {"served_epoch": 3},
    topology.DeleteVhost: {"as_of_index": 3},
}
#: Since which protocol commands say of when they are, or what they were decided on, so that they are refused if it has
#: become another matter.
COMMANDS_HAVE_A_TIME = 3
#: Kind -> the first protocol in which a command of it may be what the function says it is.
NEW_MEANINGS: Mapping[type, tuple[tuple[int, Callable[[Any], bool]], ...]] = {}


def protocol_of(command: Any) -> int:
    """The lowest protocol in which this may be proposed and carried out; of what is no command, the first."""
    if isinstance(command, commands.RaiseProtocol):
        return FIRST_PROTOCOL  # it ends the time of those who do not know it, and is refused as long as there are any
    kind = type(command)
    needed = SINCE.get(kind, FIRST_PROTOCOL)
    for name, protocol in ADDED_FIELDS.get(kind, {}).items():
        if not _is_default(command, name):
            needed = max(needed, protocol)
    for protocol, is_meant in NEW_MEANINGS.get(kind, ()):
        if is_meant(command):
            needed = max(needed, protocol)
    return max(needed, protocol_of(command.command)) if kind is commands.ChangeTopology else needed


def written_fields(value: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the fields of a command or record are written: those at the end that older releases do not know are not,
    as long as they have their defaults."""
    added = ADDED_FIELDS.get(type(value))
    if added is None:
        return names
    end = len(names)
    while names[end - 1] in added and _is_default(value, names[end - 1]):
        end -= 1
    return names[:end]


def _is_default(value: Any, name: str) -> bool:
    """Of the same type, too: there may be anything in a field, and some of that cannot be compared (``sNaN``)."""
    content, default = getattr(value, name), _default_of(type(value), name)
    return type(content) is type(default) and bool(content == default)


def _default_of(kind: Any, name: str) -> Any:
    default = next(field.default for field in fields(kind) if field.name == name)
    assert default is not MISSING, f"{kind.__name__}.{name} was added later and needs a default"
    return default
