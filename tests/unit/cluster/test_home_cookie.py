"""The secret of a node alone: made once, in the home of its user, for nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.home_cookie import FILE_NAME, home_cookie_path, read_home_cookie, read_or_make_home_cookie
from node.config import COOKIE_MIN_CHARACTERS
from node.errors import ConfigError


def test_the_first_start_makes_it_and_all_others_read_it(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    cookie = read_or_make_home_cookie(home)
    assert len(cookie) >= COOKIE_MIN_CHARACTERS
    assert read_or_make_home_cookie(home) == cookie == read_home_cookie(tmp_path / FILE_NAME)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME], "no draft is left"


def test_two_homes_have_two(tmp_path: Path) -> None:
    cookies = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        cookies.add(read_or_make_home_cookie({"HOME": str(tmp_path / name)}))
    assert len(cookies) == 2


def test_one_that_another_node_made_meanwhile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears between the look and the link."""
    path = tmp_path / FILE_NAME
    token = "of the other node, long enough"

    def appear(_size: int) -> str:
        path.touch(0o600)
        path.write_text(token)
        return "of this node, long enough"

    monkeypatch.setattr("cluster.home_cookie.secrets.token_urlsafe", appear)
    assert read_or_make_home_cookie({"HOME": str(tmp_path)}) == token
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("secret")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="others may read it, and it is a secret: `chmod 600"):
        read_or_make_home_cookie({"HOME": str(tmp_path)})


@pytest.mark.parametrize("secret", ["", "short", "x" * (COOKIE_MIN_CHARACTERS - 1)])
def test_one_that_is_too_short_is_refused_as_in_a_configuration(tmp_path: Path, secret: str) -> None:
    path = tmp_path / FILE_NAME
    path.touch(0o600)
    path.write_text(f"{secret}\n")
    with pytest.raises(ConfigError, match="the secret is too short; use 16 characters or more") as caught:
        read_home_cookie(path)
    assert "remove it, and the next start makes another" in str(caught.value)
    path.write_text("x" * COOKIE_MIN_CHARACTERS)
    assert read_home_cookie(path) == "x" * COOKIE_MIN_CHARACTERS


def test_without_a_home_the_remedy_is_named(tmp_path: Path) -> None:
    assert home_cookie_path({}) is None
    with pytest.raises(ConfigError, match=r"HOME is not set.*`cluster\.cookie`"):
        read_or_make_home_cookie({})
    with pytest.raises(ConfigError, match=r"No such file or directory; mend that, or set `cluster\.cookie`"):
        read_or_make_home_cookie({"HOME": str(tmp_path / "gone")})
