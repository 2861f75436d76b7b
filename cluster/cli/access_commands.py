"""Virtual hosts, users and their permissions."""

from __future__ import annotations

import sys

import click

from cluster.cli.framework import PROGRAM, Call, ToolCommand
from cluster.cli.options import tool_command, vhost_option
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode
from node.patterns import pattern_problem


@tool_command("list_vhosts")
@click.argument("columns", nargs=-1)
def list_vhosts(call: Call, columns: tuple[str, ...]) -> None:
    """List the virtual hosts."""
    chosen = call.check_columns(columns)
    call.banner("Listing vhosts ...")
    with call.client() as client:
        call.show(client.list_vhosts(chosen))


@tool_command("add_vhost", usage="<vhost>")
@click.argument("vhost")
def add_vhost(call: Call, vhost: str) -> None:
    """Create a virtual host; one that exists is left as it is."""
    call.banner(f'Adding vhost "{vhost}" ...')
    with call.client() as client:
        client.add_vhost(vhost)
    call.done()


@tool_command("delete_vhost", usage="<vhost>")
@click.argument("vhost")
def delete_vhost(call: Call, vhost: str) -> None:
    """Delete a virtual host with all it holds."""
    call.banner(f'Deleting vhost "{vhost}" ...')
    with call.client() as client:
        client.delete_vhost(vhost)
    call.done()


@tool_command("list_users")
def list_users(call: Call) -> None:
    """List the users and their tags."""
    call.banner("Listing users ...")
    with call.client() as client:
        call.show(client.list_users(call.check_columns(())))


def _password(call: Call, given: str | None) -> str:
    """The password of the command line, else from the terminal or standard input."""
    if given is None and sys.stdin.isatty():
        given = click.prompt("Password", hide_input=True, err=True)
    try:
        password = sys.stdin.readline().rstrip("\n") if given is None else given
        password.encode()
    except UnicodeError:
        call.refuse("the password is not UTF-8 text.")
    if not password:
        call.refuse("the password is empty.")
    return password


@tool_command("add_user", usage="<username> [<password>]", has_secret=True)
@click.argument("user")
@click.argument("password", required=False)
def add_user(call: Call, user: str, password: str | None) -> None:
    """Create a user. Without a password it is read from standard input."""
    secret = _password(call, password)
    call.banner(f'Adding user "{user}" ...')
    with call.client() as client:
        client.add_user(user, secret)
    call.remark(
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        f"See '{PROGRAM} help set_permissions' to learn more."
    )
    call.done()


@tool_command("delete_user", usage="<username>")
@click.argument("user")
def delete_user(call: Call, user: str) -> None:
    """Delete a user."""
    call.banner(f'Deleting user "{user}" ...')
    with call.client() as client:
        client.delete_user(user)
    call.done()


@tool_command("change_password", usage="<username> [<password>]", has_secret=True)
@click.argument("user")
@click.argument("password", required=False)
def change_password(call: Call, user: str, password: str | None) -> None:
    """Change a user's password. Without one it is read from standard input."""
    secret = _password(call, password)
    call.banner(f'Changing password for user "{user}" ...')
    with call.client() as client:
        client.change_password(user, secret)
    call.done()


@tool_command("set_user_tags", usage="<username> <tag> [...]")
@click.argument("user")
@click.argument("tags", nargs=-1)
def set_user_tags(call: Call, user: str, tags: tuple[str, ...]) -> None:
    """Set what a user may manage, for instance administrator; without tags all are removed."""
    call.banner(f'Setting tags for user "{user}" to [{", ".join(tags)}] ...')
    with call.client() as client:
        client.set_user_tags(user, tags)
    call.done()


@tool_command("set_permissions", usage="[--vhost <vhost>] <username> <conf> <write> <read>")
@vhost_option
@click.argument("user")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
def set_permissions(call: Call, *, user: str, configure: str, write: str, read: str, vhost: str) -> None:
    """Say which exchanges and queues a user may configure, write and read: three regular expressions."""
    call.banner(f'Setting permissions for user "{user}" in vhost "{vhost}" ...')
    for pattern in (configure, write, read):
        if problem := pattern_problem(pattern):
            raise AdminError(ExitCode.SOFTWARE, f"Invalid regular expression '{pattern}': {problem}")
    with call.client() as client:
        client.set_permissions(vhost, user, configure, write, read)
    call.done()


@tool_command("clear_permissions", usage="[--vhost <vhost>] <username>")
@vhost_option
@click.argument("user")
def clear_permissions(call: Call, user: str, vhost: str) -> None:
    """Take all permissions in a virtual host from a user."""
    call.banner(f'Clearing permissions for user "{user}" in vhost "{vhost}" ...')
    with call.client() as client:
        client.clear_permissions(vhost, user)
    call.done()


@tool_command("list_permissions", usage="[--vhost <vhost>]")
@vhost_option
def list_permissions(call: Call, vhost: str) -> None:
    """List the permissions of all users in a virtual host."""
    call.banner(f'Listing permissions for vhost "{vhost}" ...')
    with call.client() as client:
        call.show(client.list_permissions(vhost, call.check_columns(())))


COMMANDS: tuple[ToolCommand, ...] = (
    list_vhosts,
    add_vhost,
    delete_vhost,
    list_users,
    add_user,
    delete_user,
    change_password,
    set_user_tags,
    set_permissions,
    clear_permissions,
    list_permissions,
)
