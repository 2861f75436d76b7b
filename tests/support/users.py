"""Users for tests."""

from __future__ import annotations

from node.auth import PermissionRecord, UserDirectory, UserRecord, hash_password


def users_with_guest(vhost: str = "/") -> UserDirectory:
    """A directory with the user guest/guest, administrator, who may do everything in ``vhost``."""
    directory = UserDirectory()
    directory.set_user(UserRecord("guest", hash_password("guest", b"salt"), ("administrator",)))
    directory.set_permission(PermissionRecord("guest", vhost, ".*", ".*", ".*"))
    return directory
