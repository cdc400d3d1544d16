"""The configuration file, the environment and what was typed become targets; a mistake is one clear line."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmtop.contract.settings import (
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    NodeAddress,
    Target,
    UsageError,
    is_node,
    named_apart,
    parse_node,
    parse_target,
)

_LARGEST = 2**20
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
ONE_KEY = "--api-key-env is for one server; give each its own api_key_env in the configuration file"
_DEFAULTS = {"interval": float, "theme": str, "ascii": bool, "mouse": bool, "memory": str, "watch": list}
_NODE_KEYS = {"ssh": str, "api_key_env": str}
_SERVER_KEYS = {"url": str, "api_key_env": str, "ca": str, "insecure": bool, "max_num_seqs": int}


def config_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/llmtop/config.toml`."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "~"), ".config")
    return Path(base).expanduser() / "llmtop" / "config.toml"


def load_user_config() -> dict[str, Any]:
    """The configuration of whoever runs llmtop."""
    return load_config(config_path(os.environ))


def _toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # most have no such file, and the first frame waits for imports

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one, a number of thousands of digits another
        raise UsageError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    """A file of reasonable size; raises OSError, or UsageError for what is no text."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe would never end
        data = file.read(_LARGEST + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    if data is None or len(data) > _LARGEST:
        raise UsageError(f"{path} is no configuration file: {'too large' if data else 'no regular file'}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from None


def load_config(path: Path) -> dict[str, Any]:
    """The checked contents of the configuration file; empty when there is none."""
    try:
        content = _toml(path, _text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    servers, nodes = content.pop("servers", {}), content.pop("nodes", {})
    _check(path, "", content, _DEFAULTS)
    if not all(isinstance(name, str) for name in content.get("watch", [])):
        raise UsageError(f'{path}: watch must be a list of names or servers, like ["spark-a:8000"]')
    _check_tables(path, "servers", servers, "url", "http://HOST:PORT", _SERVER_KEYS)
    _check_tables(path, "nodes", nodes, "ssh", "USER@HOST:PORT", _NODE_KEYS)
    return {**content, "servers": servers, "nodes": nodes}


def _check_tables(path: Path, kind: str, tables: Any, key: str, like: str, known: Mapping[str, type]) -> None:
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: write {kind} as [{kind}.NAME] tables")
    for name, entry in tables.items():
        if not isinstance(entry, dict) or key not in entry:
            raise UsageError(f'{path}: [{kind}.{name}] needs {key} = "{like}"')
        _check(path, f"[{kind}.{name}] ", entry, known)


def _check(path: Path, where: str, table: Mapping[str, Any], known: Mapping[str, type]) -> None:
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{path}: {where}unknown key {key!r}; known are {', '.join(known)}")
        kind = known[key]
        good = isinstance(value, (int, float) if kind is float else kind)
        if not good or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"{path}: {where}{key} must be a {kind.__name__}, not a {type(value).__name__}")
        if kind is int and value < 1:
            raise UsageError(f"{path}: {where}{key} must be 1 or more, not {value}")


def checked_interval(value: float) -> float:
    """An interval in the allowed range, in seconds."""
    if not MIN_INTERVAL_S <= value <= MAX_INTERVAL_S:
        raise UsageError(f"the interval must be {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} seconds, not {value:g}")
    return value


def resolve_targets(
    names: Sequence[str],
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    key_env: str | None = None,
    *,
    alone: bool = True,
) -> tuple[Target, ...]:
    """The servers named on the command line (URLs or names of the file), each with its own key or none.

    The key of the environment is for one that is `alone`.
    """
    entries: Mapping[str, Any] = config.get("servers", {})
    targets = [_named(name, entries[name], environ) if name in entries else parse_target(name) for name in names]
    unique = tuple({target.url: target for target in targets}.values())
    if not alone and key_env:
        raise UsageError(ONE_KEY)
    return attach_key(unique, environ, key_env) if alone else unique


def resolve_nodes(
    names: Sequence[str], config: Mapping[str, Any], environ: Mapping[str, str], key_env: str | None = None
) -> tuple[tuple[NodeAddress, ...], tuple[str, ...]]:
    """The machines to be read by ssh among the names (URLs or names of the file), and the names of servers."""
    entries: Mapping[str, Any] = config.get("nodes", {})
    servers = tuple(name for name in names if name not in entries and not is_node(name))
    found = [
        _node(name, entries[name], environ) if name in entries else parse_node(name)
        for name in names
        if name not in servers
    ]
    nodes = named_apart(found)
    if key_env and len(nodes) > 1:
        raise UsageError(ONE_KEY)
    if len(nodes) != 1 or servers:
        return nodes, servers
    wanted = key_env or ("VLLM_API_KEY" if environ.get("VLLM_API_KEY", "").strip() else None)
    key = nodes[0].key or (_key(environ, wanted, "--api-key-env" if key_env else "environment") if wanted else None)
    return (replace(nodes[0], key=key),), servers


def _node(name: str, entry: Mapping[str, Any], environ: Mapping[str, str]) -> NodeAddress:
    text, variable = entry["ssh"], entry.get("api_key_env")
    address = parse_node(text if is_node(text) else f"ssh://{text}", name)
    key = _key(environ, variable, f"[nodes.{name}] api_key_env") if variable else None
    return replace(address, key=key)


def _named(name: str, entry: Mapping[str, Any], environ: Mapping[str, str]) -> Target:
    target = parse_target(entry["url"])
    variable = entry.get("api_key_env")
    return replace(
        target,
        name=name,
        key=_key(environ, variable, f"[servers.{name}] api_key_env") if variable else None,
        ca=Path(os.path.expanduser(entry["ca"])) if "ca" in entry else None,
        insecure=entry.get("insecure", False),
        max_num_seqs=entry.get("max_num_seqs"),
    )


def check_certificates(targets: Sequence[Target]) -> None:
    """Raise UsageError for a certificate file that is not there or holds no certificate."""
    for path in {target.ca for target in targets if target.ca is not None}:
        import ssl

        try:
            ssl.create_default_context(cafile=path)
        except (ssl.SSLError, ValueError):  # a path may have a NUL
            raise UsageError(f"certificate authority {path}: holds no certificate") from None
        except OSError as error:
            raise UsageError(f"certificate authority {path}: {error.strerror}") from None


def attach_key(targets: tuple[Target, ...], environ: Mapping[str, str], key_env: str | None) -> tuple[Target, ...]:
    """Give the key of the environment to the only origin there is; a key never goes to two."""
    origins = {target.origin for target in targets}
    if key_env and len(origins) > 1:
        raise UsageError(ONE_KEY)
    wanted = key_env or ("VLLM_API_KEY" if environ.get("VLLM_API_KEY", "").strip() else None)
    key = _key(environ, wanted, "--api-key-env" if key_env else "environment") if wanted else None
    if key is None or len(origins) != 1:
        return targets
    return tuple(target if target.key else replace(target, key=key) for target in targets)


def _key(environ: Mapping[str, str], variable: str, where: str) -> str:
    key = environ.get(variable, "").strip()
    if not key and not _VARIABLE.fullmatch(variable):  # it may be the key itself, which is not repeated
        raise UsageError(
            f"{where}: there is no environment variable of that name; export the key and name its variable"
        )
    if not key:
        raise UsageError(f"{where}: the environment variable {variable} is not set; export it first")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"{where}: the value of {variable} cannot be sent in a header")
    return key
