"""docs/corpus.md and README.md: the tables are what scripts/corpus_tables makes of the shipped traces; its short forms by hand.

The first is skipped where opd._reference is not built."""
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from opd.reference import ReferenceMissing, module
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
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=1800, check=False)
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


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("corpus_tables", str(SCRIPT))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(loaded)
    return loaded


def figures(detected, incidents, median, p10, upstream, chance) -> dict:
    return {"detected": detected, "incidents": incidents, "lead_median": median, "lead_p10": p10,
            "upstream_same_step_events": upstream, "upstream_by_chance": chance}


def test_the_matched_table_by_hand(script):
    held = {"gradual": figures(9, 10, 70, 12, 3, 0.1), "sudden": figures(6, 8, 4, 0, 7, None),
            "false_alarms_near_limit_per_1000": 0.654, "false_alarms_healthy_with_warm_up_per_1000": 0.004,
            "false_alarms_stressed_with_warm_up_per_1000": None}
    good = {"rate": 1.0, "threshold": -1.25, "end_of_sweep": False, "unit": "bits", "held_out": held, "lowest_rate": 0.0}
    entries = [good | {"rule": rule} for rule in script.RULES]
    entries[1] |= {"threshold": None, "held_out": None, "lowest_rate": 6.82}
    entries[2] |= {"end_of_sweep": True}
    entries[3] |= {"end_of_sweep": True, "unit": "-headroom in bits"}
    rows = script.matched_table({"matched": entries}).splitlines()
    assert rows[2] == ("| ≤ 1 | forecast | -1.25 (bits) | 9/10 | 70 / 12 steps | 6/8 | 7/8 (by chance -) | 0.65 / 0.00 / - |")
    assert rows[3] == "| ≤ 1 | forecast-no-jump | none: 6.82 at least | – | – | – | – | – |"
    assert "| at most -1.25 (bits) |" in rows[4] and "| at least 1.25 bits |" in rows[5]
    assert len(rows) == 2 + len(script.RULES)


def test_counts_and_state_bits(script):
    runs = [{"split": split, "outcome": outcome} for split, outcome in (
        ("tuning", "operator"), ("held-out", "operator"), ("held-out", "none"), ("held-out", "no operator"))]
    assert script.counts({"runs": runs}).startswith("4 labelled runs with 2 incidents")
    assert "chosen on 1 of them; the tables show the 3 held out." in script.counts({"runs": runs})
    devices = json.loads((ROOT / "rtl" / "synthesis.json").read_text())["devices"]
    mapped = devices["forecast engine"]["per_op"]["state_bits"]
    assert script.state_bits({"name": "forecast", "state_bits": 33}) == f"33 ({mapped:g})" and mapped > 33
    assert script.state_bits({"name": "olmo-6-sigma", "state_bits": 4104}) == "4,104"
