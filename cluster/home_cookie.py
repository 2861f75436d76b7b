"""The secret that a node alone and the tools of its user share: ``~/.warren.cookie``, as Erlang's ``~/.erlang.cookie``.

Without a secret every user of the machine, and of the network if the node listens there, would be its administrator. A
node that is told of none takes the one of its user's home, and makes it if there is none; `warrenctl` reads it there.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from node.config import check_cookie
from node.errors import ConfigError

FILE_NAME = ".warren.cookie"
_BYTES = 32
_REMEDY = "or set `cluster.cookie` or `cluster.cookie_file`"


def home_cookie_path(environment: Mapping[str, str]) -> Path | None:
    """``None`` if the user has no home."""
    home = environment.get("HOME", "")
    return Path(home) / FILE_NAME if home else None


def read_home_cookie(path: Path) -> str | None:
    """``None`` if there is none. Raises `ConfigError` if others may read it, it is short, or it cannot be read."""
    try:
        mode = path.stat().st_mode
        cookie = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the cookie: {reason}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path}: others may read it, and it is a secret: `chmod 600 {path}`")
    check_cookie(cookie, str(path), ", or remove it, and the next start makes another")
    return cookie


def read_or_make_home_cookie(environment: Mapping[str, str]) -> str:
    """The secret of a node that is told of none. Raises `ConfigError`."""
    path = home_cookie_path(environment)
    if path is None:
        raise ConfigError(f"HOME is not set, so there is no place for a cookie: set HOME, {_REMEDY}")
    cookie = read_home_cookie(path)
    if cookie is not None:
        return cookie
    # Whole from its first moment: of two nodes that start at once, one makes it and both read the same.
    draft = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot make a cookie there: {error.strerror}; mend that, {_REMEDY}") from None
    made = read_home_cookie(path)
    assert made is not None, "it was linked a moment ago"
    return made
