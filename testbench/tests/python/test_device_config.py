"""Device configuration files: the reader and writer of the package, and opd replay --config.

Testplan: CFG-02.
"""
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from opd.device_config import ConfigFileError, DeviceConfig, is_float, parse, read
from opd.registers import CONFIG_RANGE, CONFIG_RESET, PROFILES
from opd.trace import Probe, TraceWriter

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
HEAD = '{"format": "opd-config", "version": 1, '


def with_config(fields: str) -> str:
    return HEAD + '"config": {' + fields + "}}"


FAULTS = [
    ("", "file: is not valid JSON; write it again"),
    ('{"format": ', "file: is not valid JSON; "),
    (with_config('"z_threshold": NaN'), "file: is not valid JSON; "),
    (with_config('"risk_safe": 9, "risk_safe": 8'), 'file: is duplicate key "risk_safe"; '),
    ("[]", "file: is no JSON object; "),
    ('{"format": "opd-trace", "version": 1, "config": {}}', 'format: is not "opd-config"; '),
    ('{"format": "opd-config", "version": 2, "config": {}}', "version: is not 1; "),
    ('{"format": "opd-config", "version": true, "config": {}}', "version: is not 1; "),
    (HEAD + '"config": {}, "calibration": 3}', "calibration: is no JSON object; "),
    (HEAD + '"config": {}, "profile": "paper"}', "profile: is no risk profile; use forecast or published"),
    (HEAD + '"config": {}, "profile": ["forecast"]}', "profile: is no risk profile; "),
    (HEAD + '"config": {}, "profil": "forecast"}', '"profil": is not known; did you mean profile?'),
    (HEAD + '"config": {}, "author": "me"}', '"author": is not known; the keys are format, version, '),
    ('{"format": "opd-config", "version": 1}', "config: is missing or no JSON object; "),
    (with_config('"jump_treshold": 90'), 'config."jump_treshold": is no configuration field; did you mean jump_threshold?'),
    (with_config('"window": 90'), 'config."window": is no configuration field; opd registers lists the fields'),
    (with_config('"baseline_shift": 9'),
     "config.baseline_shift: 9 is outside the register's range; give a whole number in 1..8"),
    (with_config('"baseline_shift": 4.5'), "config.baseline_shift: 4.5 is not a whole number; give a whole number in 1..8"),
    (with_config('"baseline_shift": "4"'), "config.baseline_shift: is not a number; give a whole number in 1..8"),
    (with_config('"baseline_shift": 1e300'), "config.baseline_shift: 1e+300 is outside the register's range; "),
    (with_config('"control_enable": true'), "config.control_enable: is not a number; "),
    (with_config('"z_threshold": -0.5'), "config.z_threshold: -0.5 is outside the register's range; give a number in 0..32768"),
    (with_config('"z_threshold": -0.0'), "config.z_threshold: -0"),
    (with_config('"d2_threshold": 1e300'), "config.d2_threshold: 1e+300 is outside the register's range; "),
    (with_config('"published_alpha": 0'), "config.published_alpha: 0 is outside the register's range; "),
]


@pytest.mark.parametrize("text, error", FAULTS)
def test_faults_are_named(text, error):
    with pytest.raises(ConfigFileError) as raised:
        parse(text, "dir/mine.json")
    assert str(raised.value).startswith("dir/mine.json: " + error)


def replay(trace, *arguments, expect: int = 0) -> subprocess.CompletedProcess:
    result = subprocess.run([PROGRAM, "replay", str(trace), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.safetensors"
    writer = TraceWriter("run", "healthy", [Probe("op", "activation", "FP16", (4,))])
    for step in range(40):
        writer.add_step(step, max_abs=np.float32([32 if step < 30 else 2048]), nonfinite=np.int64([0]))
    writer.write(path)
    return path


@needs_program
@pytest.mark.parametrize("text, error", FAULTS)
def test_the_program_says_the_same(trace, tmp_path, text, error):
    (tmp_path / "mine.json").write_text(text)
    said = replay(trace, "--config", tmp_path / "mine.json", "--out", tmp_path / "out", expect=2).stderr
    assert said.startswith(f"opd: {tmp_path / 'mine.json'}: {error}")
    assert not (tmp_path / "out").exists()


@needs_program
def test_a_configuration_reaches_every_path(trace, tmp_path):
    config = DeviceConfig("published", {"jump_threshold": 200, "weight_jump": 130, "z_threshold": 4.3, "baseline_shift": 3})
    config.write(tmp_path / "mine.json")
    replay(trace, "--config", tmp_path / "mine.json", "--set", "quiet_steps=9", "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    expected = {**CONFIG_RESET, **config.settings(), "quiet_steps": 9}
    assert summary["profile"] == "published" and summary["config"].keys() == expected.keys()
    assert {name: np.float32(value) for name, value in summary["config"].items()} == \
        {name: np.float32(value) for name, value in expected.items()}
    entry = summary["traces"][0]
    assert summary["mismatches"] == 0 and {"rtl", "systemc", "systemc-lt", "cpu"} <= set(entry["paths"])
    assert entry["detection"]["flags"]["JUMP"] == 0  # 6 bits, not 6.25
    replay(trace, "--config", tmp_path / "mine.json", "--set", "jump_threshold=180", "--out", tmp_path)
    entry = json.loads((tmp_path / "summary.json").read_text())["traces"][0]
    assert entry["detection"]["flags"]["JUMP"] > 0


@needs_program
def test_a_planted_mismatch_is_dumped_with_the_same_configuration(trace, tmp_path):
    DeviceConfig("forecast", {"baseline_warmup_samples": 0}).write(tmp_path / "mine.json")
    stdout = replay(trace, "--config", tmp_path / "mine.json", "--plant-fault", "systemc", "--out", tmp_path, expect=1).stdout
    assert "MISMATCH" in stdout.upper() and (tmp_path / "run.fst").stat().st_size > 1000


@needs_program
def test_a_file_and_a_profile_are_too_much(trace, tmp_path):
    DeviceConfig().write(tmp_path / "mine.json")
    said = replay(trace, "--config", tmp_path / "mine.json", "--profile", "forecast", expect=2).stderr
    assert "--profile forecast" in said and "drop --profile" in said and "mine.json" in said
    assert "does not exist" in replay(trace, "--config", tmp_path / "none.json", expect=2).stderr


NUMBERS = {name: strategies.floats(*CONFIG_RANGE[name], width=32) if is_float(name)
           else strategies.integers(*CONFIG_RANGE[name]) for name in CONFIG_RESET}


@settings(deadline=None, max_examples=200)
@given(strategies.sampled_from(list(PROFILES)), strategies.fixed_dictionaries({}, optional=NUMBERS))
def test_what_is_written_is_read_again(profile, fields):
    fields = {name: abs(value) if is_float(name) else value for name, value in fields.items()}
    config = DeviceConfig(profile, fields, {"note": "é"})
    again = parse(config.to_json(), "f")
    assert again == config and again.settings() == {**PROFILES[profile], **fields}


def test_files_that_cannot_be_used_are_named(tmp_path):
    def fault(action) -> str:
        with pytest.raises(ConfigFileError) as raised:
            action()
        return str(raised.value)

    (tmp_path / "large").write_text(" " * ((1 << 20) + 1))
    (tmp_path / "latin").write_bytes(b'{"format": "\xff"}')
    assert fault(lambda: read(tmp_path / "none")) == f"{tmp_path / 'none'}: file: does not exist; check its name"
    assert "is no regular file" in fault(lambda: read(tmp_path))
    assert "is larger than 1 MiB" in fault(lambda: read(tmp_path / "large"))
    assert "is not valid JSON" in fault(lambda: read(tmp_path / "latin"))
    assert "cannot be written" in fault(lambda: DeviceConfig().write(tmp_path / "none" / "mine.json"))
    with pytest.raises(ConfigFileError, match="outside the register's range"):
        DeviceConfig("forecast", {"baseline_shift": 12}).write(tmp_path / "mine.json")
    assert not (tmp_path / "mine.json").exists() and len(list(tmp_path.iterdir())) == 2
