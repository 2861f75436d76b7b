"""Decorators for commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cluster.cli.framework import ToolCommand

Function = Callable[..., None]


def tool_command(name: str, *, usage: str = "", has_secret: bool = False) -> Callable[[Function], ToolCommand]:
    """Make a function of a `Call` and its own arguments a command."""

    def decorate(function: Function) -> ToolCommand:
        attributes: dict[str, Any] = {"usage": usage, "has_secret": has_secret}
        return click.command(name, cls=ToolCommand, **attributes)(function)

    return decorate


def vhost_option(function: Function) -> Function:
    return click.option("-p", "--vhost", default="/", help="Virtual host.")(function)
