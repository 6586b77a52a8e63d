"""The study file: grids of axes and what is fixed, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pliant.adapt.settings import Settings
from pliant.backbone.timm_models import near
from pliant.data import absolute
from pliant.errors import PliantError

MACHINE = ("device", "cache", "checkpoint_minutes", "micro_batch")
"""Settings that change where and how a run computes, not what comes out."""
_SAME_IN_ALL = ("val_fraction", "limit_val", "limit_test", "max_corrupt")
"""Settings that say on which images runs are judged: no axis, since accuracies would not be comparable."""
FIXABLE = tuple(name for name in Settings.model_fields if name != "out")
AXES = tuple(name for name in FIXABLE if name not in (*MACHINE, *_SAME_IN_ALL))


@dataclass(frozen=True)
class Grid:
    """Every combination of the axes' values is a run.

    Attributes:
        axes: lists of values by the name of the setting; None among them is the method's own default.
        fixed: values that all runs of the grid share.
    """

    axes: dict[str, list[Any]]
    fixed: dict[str, Any]

    def values(self, name: str) -> list[Any]:
        """All values that a setting takes, as far as the grid says."""
        return self.axes.get(name, [self.fixed[name]] if name in self.fixed else [])

    def absolute(self) -> Grid:
        axes = {name: [_absolute(name, value) for value in values] for name, values in self.axes.items()}
        return Grid(axes, {name: _absolute(name, value) for name, value in self.fixed.items()})


@dataclass(frozen=True)
class Study:
    """What a study file says: the runs of all its grids, those that are in several of them once.

    Attributes:
        grids: at least one.
        fixed: values that the runs of all grids share.
        source: the file that it was read from, for messages.
    """

    grids: tuple[Grid, ...]
    fixed: dict[str, Any]
    source: str = "study"

    @property
    def named(self) -> list[str]:
        """The settings that it says anything of, in its order."""
        parts = [part for grid in self.grids for part in (grid.axes, grid.fixed)]
        return list(dict.fromkeys(name for part in (*parts, self.fixed) for name in part))

    def values(self, name: str) -> list[Any]:
        """All values that a setting takes; None, its default, for the grids that leave it out."""
        found: list[Any] = []
        for grid in self.grids:
            told = grid.values(name) or [self.fixed.get(name)]
            found += [value for value in told if value not in found]
        return found

    def absolute(self) -> Study:
        """The same study from whatever folder it is run: paths that exist are made absolute."""
        fixed = {name: _absolute(name, value) for name, value in self.fixed.items()}
        return Study(tuple(grid.absolute() for grid in self.grids), fixed, self.source)

    def yaml(self) -> str:
        content: dict[str, Any] = {"fixed": self.fixed, "grids": [vars(grid) for grid in self.grids]}
        if len(self.grids) == 1:
            content = {"axes": self.grids[0].axes, "fixed": self.grids[0].fixed | self.fixed}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def read(path: Path) -> Study:
    """The study that `path` holds.

    Raises:
        PliantError: no such file, no YAML, or what `parse` refuses.
    """
    try:
        content = loaded(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise PliantError(f"{path}: no such file; give a study file with axes: and fixed:") from None
    except UnicodeDecodeError:
        raise PliantError(f"{path}: is no text file; give a study file with axes: and fixed:") from None
    except OSError as error:
        raise PliantError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise PliantError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from error
    return parse(content, str(path))


def loaded(text: str) -> Any:
    """What YAML holds, read as study files are: 1e-3 is a number, no and off are words. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def parse(content: Any, source: str) -> Study:
    """Check the content of a study file.

    Raises:
        PliantError: with `source` in front: an unknown key, an axis that is no list, is empty or repeats a value, a key
            that is fixed and an axis, a value of the wrong type, no data, axes beside grids.
    """
    if not isinstance(content, Mapping) or not content:
        raise PliantError(f"{source}: is no study file; it needs axes: with a list for each setting to vary")
    _check_keys(content, ("axes", "fixed", "grids"), source)
    if "grids" not in content:
        grid = _grid(content, source)
        _check_data(grid.axes | grid.fixed, source)
        return Study((grid,), {}, source)
    if "axes" in content:
        raise PliantError(f"{source}: has axes: beside grids:; put them into a grid of the list")
    parts = content["grids"]
    if not isinstance(parts, list) or not parts:
        raise PliantError(f"{source}: grids must be a list of grids, each with axes: and, if needed, fixed:")
    common = _fixed(content, source)
    grids = []
    for number, part in enumerate(parts, 1):
        where = f"{source}: grid {number}"
        if not isinstance(part, Mapping) or not part:
            raise PliantError(f"{where}: must hold axes: with a list for each setting to vary")
        _check_keys(part, ("axes", "fixed"), where)
        grid = _grid(part, where)
        if twice := next((name for name in (*grid.axes, *grid.fixed) if name in common), None):
            raise PliantError(f"{where}: {twice} is also fixed for all grids; leave one out")
        _check_data(common | grid.axes | grid.fixed, where)
        grids.append(grid)
    return Study(tuple(grids), common, source)


def _check_keys(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in known:
            hint = "; put it below axes: or fixed:" if key in FIXABLE else near(str(key), list(known))
            raise PliantError(f"{where}: unknown key {key!r}{hint}")


def _grid(content: Mapping[str, Any], where: str) -> Grid:
    axes = _section(content, "axes", where)
    for name, values in axes.items():
        _check_axis(name, values, where)
    fixed = _fixed(content, where)
    if twice := next((name for name in fixed if name in axes), None):
        raise PliantError(f"{where}: {twice} is both fixed and an axis; leave one out")
    return Grid(axes, fixed)


def _fixed(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    fixed = _section(content, "fixed", where)
    for name, value in fixed.items():
        _check_name(name, FIXABLE, f"{where}: fixed", "setting")
        if isinstance(value, list):
            raise PliantError(f"{where}: fixed.{name} is a list; put it below axes: to vary it")
        _check_value(name, value, f"{where}: fixed.{name}")
    return fixed


def _check_data(told: Mapping[str, Any], where: str) -> None:
    if "data" not in told:
        raise PliantError(f"{where}: names no data; add data: [NAME] below axes:")


def _section(content: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    section = content.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise PliantError(f"{source}: {name} must hold settings and their values, as in data: digits")
    return dict(section)


def _check_axis(name: str, values: Any, source: str) -> None:
    where = f"{source}: axes"
    if name in FIXABLE and name not in AXES:
        raise PliantError(f"{where}: {name} cannot be an axis; put one value below fixed:")
    _check_name(name, AXES, where, "axis")
    if not isinstance(values, list):
        raise PliantError(f"{where}.{name} must be a list, as in {name}: [{values}]")
    if not values:
        raise PliantError(f"{where}.{name} is empty; give it values or leave it out")
    for number, value in enumerate(values):
        _check_value(name, value, f"{where}.{name}")
        if value in values[:number]:
            raise PliantError(f"{where}.{name} has {value!r} twice")


def _check_name(name: Any, known: tuple[str, ...], where: str, what: str) -> None:
    if name == "out":
        raise PliantError(f"{where}: out is not for a study file; runs go to the folder that --out names")
    if name not in known:
        hint = near(str(name), list(known)) or f"; there are {', '.join(known)}"
        raise PliantError(f"{where}: unknown {what} {name!r}{hint}")


def _check_value(name: str, value: Any, where: str) -> None:
    """Strict, so that `true` is no 1 and "8" is no 8. What contradicts another setting is found when runs are made."""
    try:
        Settings.model_validate({"data": "-", name: value}, strict=True)
    except ValidationError as error:
        found = [each for each in error.errors() if each["loc"][:1] == (name,)]
        if found:
            said = found[0]["msg"].removeprefix("Input ")
            raise PliantError(f"{where}: {value!r} {said}") from error


def _absolute(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "data":
        return absolute(value)
    path = Path(value).expanduser()
    is_path = (name == "weights" and path.exists()) or (name == "model" and (path / "config.json").is_file())
    return str(path.resolve()) if is_path else value


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, no and off are words, a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML reads, takes `no` for false and 1e-3 for a text; YAML 1.2 has mended both.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}  # fmt: skip
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|True|false|False"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"),
    list("-+0123456789."),
)
