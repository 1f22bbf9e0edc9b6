"""Reads the configuration: a YAML file, overridden by the environment, overridden by flags.

Every key is also `PD_SIDECAR__SECTION__KEY` in the environment. Validated once and whole: `load`
reports every fault at once, each with its key. The environment and the file's text are arguments.
"""

import types
import typing
from collections.abc import Mapping

import msgspec
import yaml

from sidecar.config.faults import cross_faults, range_faults
from sidecar.config.keys import Config, Section, StaticInstance
from sidecar.errors import ConfigError

ENVIRONMENT_PREFIX = "PD_SIDECAR__"


def load(text: str, environment: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration of a file's `text` (empty: none), the environment and flags.

    `flags` maps dotted keys (`edge.listen`) to values; None values are left out. Raises ConfigError
    with every fault.
    """
    faults: list[str] = []
    try:
        tree = _from_yaml(text)
    except ValueError as error:
        raise ConfigError([f"the configuration is not YAML: {error}"]) from None
    tree = {} if tree is None else tree  # no file, or one of comments alone
    if not isinstance(tree, dict):
        raise ConfigError(["the configuration must be a map of sections"])
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _put(tree, path, _Written(value), faults)
    for key, flag in flags.items():
        if flag is not None:
            _put(tree, key.split("."), flag, faults)
    # Never None: every key of Config has a default.
    config = typing.cast("Config", _build(Config, tree, "", faults))
    faults = (faults + range_faults(config)) or cross_faults(config)
    if faults:
        raise ConfigError(faults)
    return config


class _Written(str):
    """A value as it stands in the environment: text where the key takes text, else YAML."""

    __slots__ = ()

    def read(self, hint: typing.Any) -> object:
        is_optional = _is_union(hint)
        if is_optional and self in ("", "null"):
            return None
        if hint is str or (is_optional and str in typing.get_args(hint)):
            return str(self)
        try:
            return _from_yaml(self)
        except ValueError:
            return str(self)


def _from_yaml(text: str) -> object:
    """Raises ValueError that says where it is none."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # The library's own, and what it lets through for a value that is not of its tag or form:
    # `!!timestamp x`, `!!bool x`, `!!int ""`, `2001-99-99`.
    except (yaml.YAMLError, ValueError, AttributeError, LookupError, OverflowError) as error:
        where = str(error).replace('"<unicode string>", ', "")
        raise ValueError(" ".join(where.split()) or type(error).__name__) from None


def _put(tree: dict[str, object], path: list[str], value: object, faults: list[str]) -> None:
    node = tree
    for part in path[:-1]:
        if node.get(part) is None:
            node[part] = {}
        child = node[part]
        if not isinstance(child, dict):
            faults.append(f"{'.'.join(path)}: {part} is not a section")
            return
        node = child
    node[path[-1]] = value


def _build(kind: type[Section], tree: object, at: str, faults: list[str]) -> Section | None:
    """`tree` as a `kind`, faults appended with their keys. What is wrong keeps its default; None:
    what is missing has none."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        faults.append(f"{at.rstrip('.')}: expected a map of keys, got {tree!r}")
        tree = {}
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for key, value in tree.items():
        where = f"{at}{key}"
        if key not in hints:
            known = ", ".join(sorted(hints))
            faults.append(f"{where}: unknown key (known here: {known})")
        else:
            try:
                values[str(key)] = _value(hints[key], value, where, faults)
            except (msgspec.ValidationError, UnicodeEncodeError):  # or text that is no Unicode
                faults.append(f"{where}: expected {_words(hints[key])}, got {value!r}")
    required = {f.name for f in msgspec.structs.fields(kind) if f.required}
    faults += [f"{at}{name}: missing" for name in sorted(required - tree.keys())]
    return kind(**values) if required <= values.keys() else None


def _value(hint: typing.Any, value: object, where: str, faults: list[str]) -> object:
    """`value` as a `hint`; raises msgspec.ValidationError where it is none."""
    if isinstance(value, _Written):
        value = value.read(hint)
    if isinstance(hint, type) and issubclass(hint, Section):
        return _build(hint, value, f"{where}.", faults)
    if hint == tuple[StaticInstance, ...]:
        items = msgspec.convert(value, list[object])
        built = [
            _build(StaticInstance, item, f"{where}[{i}].", faults) for i, item in enumerate(items)
        ]
        return tuple(item for item in built if item is not None)
    return msgspec.convert(value, hint)


def _is_union(hint: typing.Any) -> bool:
    """`X | None`; of a Literal it is another type than of a class (until Python 3.14)."""
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _words(hint: typing.Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if _is_union(hint):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if hint == tuple[StaticInstance, ...]:
        return "a list of instances"
    if typing.get_origin(hint) is tuple:
        return "a list of " + _words(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return names.get(hint, str(hint))
