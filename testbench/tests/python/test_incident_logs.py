"""docs/incident-logs.md: the tables are what scripts/incident_logs makes of the public logs; its words by hand.

The logs are read from the folder in OPD_PUBLIC_TRACES, else ../shared/public_traces beside the repository, and opd._reference
from that in OPD_BUILD; without them the tests that need them are skipped.
"""
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opd.reference import ReferenceMissing, module

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "incident_logs"
PUBLIC = Path(os.environ.get("OPD_PUBLIC_TRACES", ROOT.parent / "shared" / "public_traces"))

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False
needs_logs = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"{PUBLIC} is absent (OPD_PUBLIC_TRACES names another)")
needs_reference = pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("incident_logs", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    loaded = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    return loaded


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False)


@needs_logs
@needs_reference
def test_the_committed_tables_are_current(tmp_path):
    result = run("--check", "--logs", PUBLIC, "--keep", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "25 traces of 14 files, as committed" in result.stdout
    assert len(list(tmp_path.glob("*.safetensors"))) == 25 and (tmp_path / "labels.toml").exists()


def test_a_missing_log_is_named(tmp_path):
    result = run("--check", "--logs", tmp_path)
    assert result.returncode == 2
    assert re.search(r"chronicles.csv: is absent; name the folder with the logs in --logs", result.stderr)


def test_another_table_is_stale(script):
    document = "a\n<!-- logs: written by scripts/incident_logs -->\nold\n<!-- end -->\nb"
    changed = script.put(Path("page"), document, "logs", "incident_logs", "new")
    assert changed == document.replace("old", "new")
    assert script.put(Path("page"), changed, "logs", "incident_logs", "new") == changed
    with pytest.raises(SystemExit, match="incident_logs: page: .* are missing"):
        script.put(Path("page"), "no marks", "logs", "incident_logs", "new")


def test_rows_of_one_log_that_say_the_same_are_one(script):
    rows = [("a.1", ["x"]), ("a.2", ["x"]), ("a.3", ["y"]), ("b.1", ["y"]), ("c", ["y"]), ("d", ["y"])]
    assert script.merged(rows) == [["a.1 to 2", "x"], ["a.3", "y"], ["b.1", "y"], ["c", "y"], ["d", "y"]]


@pytest.mark.parametrize("changes, cell", [
    ({}, "quiet"),
    ({"has_verdict": False, "alarms": 3}, "–"),
    ({"alarms": 3}, "elsewhere (3)"),
    ({"alarms": 3, "alarm_before": {"probe": "a", "step": 93}}, "7 before (3)"),
    ({"alarms": 3, "lead_steps": 9, "alarm_before": {"probe": "a", "step": 93}}, "lead 9 (3)"),
    ({"alarms": 1, "alarm_same_step": {"probe": "a", "step": 100}}, "same step (1)"),
    ({"alarm_at_incident": True}, "itself"),
    ({"alarms": 5, "overflows_warned": 2}, "2 of 4 (5)"),
])
def test_words_of_a_cell(script, changes, cell):
    run = {"event_step": 100, "first_incident": {"op": 0, "probe": "a", "step": 100}, "overflows": 4}
    said = {"name": "x", "has_verdict": True, "lead_steps": 0, "alarms": 0, "alarm_before": None, "alarm_same_step": None,
            "alarm_at_incident": False, "overflows_warned": 0}
    assert script.verdict(run, said | changes) == cell
    jump = {**run, "event_step": 90}  # the lead is that of the incident, not of the event
    assert "lead" not in script.verdict(jump, said | {"lead_steps": 9, "alarms": 3})
