"""``replog user``: who may connect to a gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spark_replog.cli.metrics import replace_file
from spark_replog.cli.output import emit
from spark_replog.cli.settings import ReplogGroup
from spark_replog.cli.tables import is_terminal, quoted, table
from spark_replog.errors import ErrorCode, InvalidConfigError
from spark_replog.gateway.user_file import MECHANISMS, credentials_of, encode_users, read_users

_users_flag = click.option(
    "--users", "path", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File of users."
)


@click.group("user", cls=ReplogGroup)
def user() -> None:
    """Keep the file of a gateway's users. It holds salted SCRAM credentials, and no password.

    A running gateway reads the file again when it changes. Who is connected stays connected.
    """


@user.command("add", examples=["user add alice --users ./users.json"])
@click.argument("name")
@_users_flag
def add(name: str, path: Path) -> int:
    """Add a user, or give one a new password. Asks for it, or reads the first line of stdin."""
    if not name.isprintable() or not name.strip() or len(name) > 255:
        raise click.UsageError("NAME needs 1 to 255 characters that can be printed")
    password = _password(name)
    if not password:
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, "the password is empty. Type one, or send a line to stdin.")
    users = read_users(path) if path.exists() else {}
    is_new = name not in users
    users[name] = credentials_of(password)
    replace_file(path, encode_users(users), mode=0o600)
    what = "is a new user of" if is_new else "has a new password in"
    return emit([{"user": name, "new": is_new, "ok": True}], f"{quoted(name)} {what} {path}")


@user.command("remove", examples=["user remove alice --users ./users.json"])
@click.argument("name")
@_users_flag
def remove(name: str, path: Path) -> int:
    """Remove a user. Connections that the user has stay until they end."""
    users = read_users(path)
    if users.pop(name, None) is None:
        raise InvalidConfigError(ErrorCode.REPLOG_INPUT, f"{path} has no user {name!r}. See: replog user list.")
    replace_file(path, encode_users(users), mode=0o600)
    return emit([{"user": name, "ok": True}], f"{quoted(name)} is removed from {path}")


@user.command("list", examples=["user list --users ./users.json"])
@_users_flag
def list_users(path: Path) -> int:
    """List the users of a file."""
    items = [
        {"user": name, "mechanisms": ["PLAIN", *(kind for kind in MECHANISMS if kind in kinds)]}
        for name, kinds in read_users(path).items()
    ]
    return emit(items, table({"USER": "user", "MECHANISMS": "mechanisms"}, items))


def _password(name: str) -> str:
    if is_terminal(sys.stdin):
        password: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return password
    return sys.stdin.readline().rstrip("\r\n")
