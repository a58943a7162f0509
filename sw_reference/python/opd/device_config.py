"""Device configuration files: `opd replay --config` takes them, `opd calibrate` writes them (docs/formats.md).

The same rules as testbench/config_file.cpp. Everything here is plain JSON; nothing is computed.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opd.files import write_whole
from opd.registers import CONFIG_RANGE, CONFIG_RESET, PROFILES
from opd.strict_json import JsonFault, parse_json
from opd.texts import printable, quoted, suggestion

KEYS = ("format", "version", "profile", "config", "calibration")
LARGEST_FILE = 1 << 20  # bytes
_WRITE_AGAIN = "write it again as docs/formats.md says"


class ConfigFileError(ValueError):
    """A file that is no device configuration, or cannot be written. The text is "FILE: FIELD: what is wrong; remedy"."""

    def __init__(self, file: Path | str, field_name: str, wrong: str, remedy: str):
        super().__init__(printable(f"{file}: {field_name}: {wrong}; {remedy}").replace("\n", "?"))


def is_float(name: str) -> bool:
    """Whether the configuration field is a binary32 number; all others are whole numbers."""
    return isinstance(CONFIG_RESET[name], float)


def register_value(name: str, value: float) -> float:
    """The value as the register holds it: a binary32 number is rounded to nearest."""
    return float(np.float32(value)) if is_float(name) else int(value)


@dataclass(frozen=True)
class DeviceConfig:
    """A profile and the fields that were set on top of it."""
    profile: str = "forecast"
    fields: Mapping[str, float] = field(default_factory=dict)
    calibration: Mapping | None = None  # how the fields came about; no program reads it

    def settings(self) -> dict[str, float]:
        """Every field that is set, the profile's first: the `config` of opd._reference.run."""
        return {**PROFILES[self.profile], **self.fields}

    def value(self, name: str) -> float:
        return self.settings().get(name, CONFIG_RESET[name])

    def to_json(self) -> str:
        """The text of the file. Binary32 numbers have the fewest digits that give the same number back."""
        def shortest(name, value):
            return float(str(np.float32(value))) if is_float(name) else int(value)

        content = {"format": "opd-config", "version": 1, "profile": self.profile,
                   "config": {name: shortest(name, value) for name, value in self.fields.items()}}
        if self.calibration is not None:
            content["calibration"] = self.calibration
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def write(self, path: Path | str) -> None:
        """Writes the file at once or not at all. Raises ConfigFileError."""
        parse(self.to_json(), path)  # nothing is written that would not be read
        try:
            write_whole(path, self.to_json().encode("ascii"))
        except OSError as error:
            raise ConfigFileError(path, "file", f"cannot be written ({error.strerror})",
                                  "name a file in a writable folder with free space") from None


def read(path: Path | str) -> DeviceConfig:
    """Reads a file of at most 1 MiB. Raises ConfigFileError."""
    path = Path(path)
    if not path.exists():
        raise ConfigFileError(path, "file", "does not exist", "check its name")
    if not path.is_file():
        raise ConfigFileError(path, "file", "is no regular file", "name a file")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ConfigFileError(path, "file", "is larger than 1 MiB", "give a device configuration file")
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        raise ConfigFileError(path, "file", "cannot be read", "check its permissions") from None
    return parse(text, path)


def parse(text: str, file: Path | str) -> DeviceConfig:
    """The configuration in a text; `file` is its name in errors. Raises ConfigFileError."""
    def fail(name, wrong, remedy):
        raise ConfigFileError(file, name, wrong, remedy)

    try:
        content = parse_json(text)
    except JsonFault as fault:
        fail("file", f"is {fault}", _WRITE_AGAIN)
    if not isinstance(content, dict):
        fail("file", "is no JSON object", _WRITE_AGAIN)
    for key in sorted(content):  # as the other reader has them
        if key not in KEYS:
            fail(quoted(key), "is not known", suggestion(key, KEYS, f"the keys are {', '.join(KEYS)}"))
    if content.get("format") != "opd-config":
        fail("format", 'is not "opd-config"', "give a device configuration file")
    if type(content.get("version")) is not int or content["version"] != 1:
        fail("version", "is not 1", "this program reads version 1")
    if not isinstance(content.get("calibration", {}), dict):
        fail("calibration", "is no JSON object", "give an object, or leave it out")
    profile = content.get("profile", "forecast")
    if not isinstance(profile, str) or profile not in PROFILES:
        fail("profile", "is no risk profile", f"use {' or '.join(PROFILES)}")
    if not isinstance(content.get("config"), dict):
        fail("config", "is missing or no JSON object", 'give {"FIELD": NUMBER, ...}, or {}')
    fields = {}
    for name, value in sorted(content["config"].items()):
        if name not in CONFIG_RESET:
            fail(f"config.{quoted(name)}", "is no configuration field",
                 suggestion(name, tuple(CONFIG_RESET), "opd registers lists the fields"))
        fields[name] = checked(name, value, fail)
    return DeviceConfig(profile, fields, content.get("calibration"))


def checked(name: str, value, fail) -> float:
    """The register's value of a field. fail(name, wrong, remedy) raises the error."""
    low, high = CONFIG_RANGE[name]
    kind = "a number" if is_float(name) else "a whole number"
    remedy = f"give {kind} in {_shown(name, low)}..{_shown(name, high)}"
    if type(value) not in (int, float):
        fail(f"config.{name}", "is not a number", remedy)
    if not is_float(name) and value != int(value):
        fail(f"config.{name}", f"{_number(value)} is not a whole number", remedy)
    with np.errstate(over="ignore"):
        held = register_value(name, value)
    if not low <= held <= high or (is_float(name) and np.signbit(held)):
        fail(f"config.{name}", f"{_number(value)} is outside the register's range", remedy)
    return held


def _number(value: float) -> str:
    """A number of the file as binary64, with the fewest digits."""
    return repr(float(value)).removesuffix(".0")


def _shown(name: str, value: float) -> str:
    return f"{np.float32(value):.8g}" if is_float(name) else str(value)
