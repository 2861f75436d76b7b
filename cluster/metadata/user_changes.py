"""What each command about users, tags and permissions does to the directory."""

from __future__ import annotations

from dataclasses import replace

from cluster.metadata.commands import (
    AddUser,
    ChangePassword,
    ClearPermissions,
    DeleteUser,
    FoundCluster,
    SetPermissions,
    SetUserTags,
    UserCommand,
)
from cluster.metadata.errors import NoSuchUserError, NoSuchVhostError, UserExistsError
from cluster.metadata.events import AccessEnded, Event
from node.auth import PermissionRecord, UserDirectory, UserRecord
from node.topology.commands import CreateVhost
from node.topology.topology import Topology


def change_users(users: UserDirectory, topology: Topology, command: UserCommand, events: list[Event]) -> None:
    """Carry the command out, or raise a `RefusedChangeError` and change nothing."""
    name = command.user if isinstance(command, SetPermissions | ClearPermissions) else command.name
    user = users.user(name)
    if isinstance(command, AddUser):
        if user is not None:
            raise UserExistsError(name)
        users.set_user(UserRecord(name, command.password_hash, tuple(command.tags)))
    elif user is None:
        raise NoSuchUserError(name)
    else:
        _change_user(users, topology, user, command)
        if isinstance(command, DeleteUser):
            events.append(AccessEnded())


def found_cluster(users: UserDirectory, topology: Topology, command: FoundCluster, made_at_index: int) -> None:
    """In a cluster that has no vhost and never had one. ``made_at_index`` as in `Topology.apply`."""
    topology.apply(CreateVhost(command.vhost), made_at_index=made_at_index)
    if users.user(command.user) is None:
        users.set_user(UserRecord(command.user, command.password_hash, tuple(command.tags)))
    users.set_permission(PermissionRecord(command.user, command.vhost, ".*", ".*", ".*"))


def _change_user(users: UserDirectory, topology: Topology, user: UserRecord, command: UserCommand) -> None:
    match command:
        case DeleteUser():
            users.delete_user(user.name)
        case ChangePassword():
            users.set_user(replace(user, password_hash=command.password_hash))
        case SetUserTags():
            users.set_user(replace(user, tags=tuple(command.tags)))
        case SetPermissions() | ClearPermissions():
            if not topology.has_vhost(command.vhost):
                raise NoSuchVhostError(command.vhost)
            if isinstance(command, ClearPermissions):
                users.clear_permission(user.name, command.vhost)
            else:
                record = PermissionRecord(user.name, command.vhost, command.configure, command.write, command.read)
                users.set_permission(record)
        case AddUser():
            raise AssertionError("a new user is no change of an old one")
