"""scripts/testplan: ids of the plan and of the sources, tests without a row, rows without a test.

Testplan: PLN-01.
"""
import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "testplan"
GONE = "-".join(("TAP", "07"))  # not in one piece: this file is a source of tests as well


@pytest.fixture
def testplan(tmp_path, monkeypatch):
    """The script as a module, with a plan and a folder of tests of its own."""
    loader = importlib.machinery.SourceFileLoader("testplan", str(SCRIPT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("testplan", loader))
    loader.exec_module(module)
    for name in ("TESTBENCH", "TESTS"):
        monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setattr(module, "PLAN", tmp_path / "testplan.toml")
    return module


def rows(*ids: str) -> str:
    return "".join(f"[[row]]\nid = \"{name}\"\nwhat = \"w\"\ntests = ['Suite\\.{name}']\n" for name in ids)


def run(module, monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["testplan", *arguments])
    return module.main()


def test_the_plan_of_the_repository_is_sound():
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert ", 0 faults" in result.stdout


def test_an_id_of_two_rows_is_refused(testplan, tmp_path, monkeypatch, capsys):
    (tmp_path / "testplan.toml").write_text(rows("TAP-01", "TAP-02", "TAP-01"))
    assert run(testplan, monkeypatch, "--check") == 1
    assert "TAP-01: 2 rows have this id" in capsys.readouterr().err


@pytest.mark.parametrize("name, text", [
    ("a_test.cpp", "// Testplan: TAP-01 (counters), NONE (a tail\n// that ends early).\n#include <x>\n"),
    ("b_test.cpp", "// What it is.\n// Testplan: TAP-01,\n// NONE\n\nint x;\n"),
    ("test_c.py", '"""What it is.\n\nTestplan: TAP-01 this, NONE that.\n"""\nimport os\n'),
    ("test_d.py", '"""What it is."""\n\n# --- NONE: a heading ---\n'),
    ("helper.hpp", "// ---- NONE ----\n"),
])
def test_an_id_that_the_plan_lacks_is_refused(testplan, tmp_path, monkeypatch, capsys, name, text):
    (tmp_path / "testplan.toml").write_text(rows("TAP-01"))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / name).write_text(text.replace("NONE", GONE))
    assert run(testplan, monkeypatch, "--check") == 1
    told = capsys.readouterr().err
    assert f"{name}: {GONE}: no row of the plan" in told and "TAP-01:" not in told


@pytest.mark.parametrize("name, text, told", [
    ("test_x.py", "def test_one():\n    pass\n", "test_x::test_one"),
    ("test_x.py", "class TestX:\n    def test_one(self):\n        pass\n", "test_x::test_one"),
    ("x_test.cpp", "TEST(Suite, Other) {}\n", "Suite.Other"),
    ("x_test.cpp", "TEST_F(Suite, Other) {}\n", "Suite.Other"),
])
def test_a_test_without_a_row_is_found_in_its_source(testplan, tmp_path, monkeypatch, capsys, name, text, told):
    (tmp_path / "testplan.toml").write_text(rows("TAP-01"))
    (tmp_path / name).write_text(text)
    assert run(testplan, monkeypatch, "--check") == 1
    assert f"not in the plan: {told}" in capsys.readouterr().err
    (tmp_path / "testplan.toml").write_text(rows("TAP-01") + f"[[row]]\nid = \"TAP-02\"\nwhat = \"w\"\ntests = ['{told}']\n")
    assert run(testplan, monkeypatch, "--check") == 0


def test_words_that_look_like_ids_are_none(testplan, tmp_path, monkeypatch):
    (tmp_path / "testplan.toml").write_text(rows("TAP-01"))
    (tmp_path / "test_x.py").write_text('"""Reads UTF-16 files.\n\nTestplan: TAP-01.\n"""\nENCODING = "UTF-16"  # not ISO-88\n')
    assert run(testplan, monkeypatch, "--check") == 0


def test_results_are_held_against_the_plan(testplan, tmp_path, monkeypatch, capsys):
    (tmp_path / "testplan.toml").write_text(rows("TAP-01"))
    results = tmp_path / "junit.xml"

    def write(*names: str) -> str:
        cases = "".join(f'<testcase name="{name}" classname="{name}" status="run"/>' for name in names)
        results.write_text(f"<testsuite>{cases}</testsuite>")
        return str(results)

    assert run(testplan, monkeypatch, write("Suite.TAP-01")) == 0
    assert run(testplan, monkeypatch, write("Suite.TAP-01", "Suite.Other")) == 1
    assert "not in the plan: Suite.Other" in capsys.readouterr().err
    assert run(testplan, monkeypatch, write("Suite.TAP-01")) == 0
    assert run(testplan, monkeypatch, write()) == 1
    assert "TAP-01: no test of this row" in capsys.readouterr().err
    (tmp_path / "testplan.toml").write_text(rows("TAP-01", "TAP-01"))
    assert run(testplan, monkeypatch, write("Suite.TAP-01")) == 1  # a fault of the ids outlives results that are all right
