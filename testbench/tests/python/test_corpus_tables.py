"""docs/corpus.md: the tables are what scripts/corpus_tables makes of the shipped traces.

Skipped where opd._reference is not built."""
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from opd.evaluate.reference import ReferenceMissing, module
from opd.registers import CONFIG_RANGE, CONFIG_RESET

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "corpus_tables"

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False


@pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")
def test_the_committed_tables_are_current():
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "as committed" in result.stdout


def test_settings_that_are_compared():
    """Every field is one, none stands at its reset value, no two settings are the same, and the reset values are among them."""
    settings = tomllib.loads((ROOT / "testbench" / "tuning.toml").read_text())["setting"]
    for setting in settings:
        assert set(setting) == {"what", "config"}
        for name, value in setting["config"].items():
            lowest, highest = CONFIG_RANGE[name]
            assert lowest <= value <= highest and value != CONFIG_RESET[name], name
    assert len({tuple(sorted(setting["config"].items())) for setting in settings}) == len(settings)
    assert sum(not setting["config"] for setting in settings) == 1
