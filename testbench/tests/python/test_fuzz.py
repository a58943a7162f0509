"""A moment of scripts/fuzz: the first cases of each target, and whether the harness would see what it looks for.

OPD_SEED=N gives other cases. Testplan: FUZZ-01.
"""
import os
import time

import fuzzing
import pytest
from fuzzing import Target, check_text, distinct, run
from opd.importers import IMPORTERS

SEED = int(os.environ.get("OPD_SEED", "0x0F22"), 0)
IN_CPP = ["trace-c++", "config-c++"]
CASES = {"trace-c++": 800, "config-c++": 800, "trace": 150, "config": 200, "labels": 200, "journal": 60}


@pytest.fixture(scope="module")
def targets():
    return fuzzing.targets()


def test_every_reader_is_a_target(targets):
    assert {*IMPORTERS, "detect", "trace", "config", "labels", "journal", *(IN_CPP if fuzzing.PROGRAM.exists() else ())} == set(targets)
    assert all(target.samples for target in targets.values())


@pytest.mark.parametrize("name", [*IMPORTERS, "detect", "trace", "config", "labels", "journal", *IN_CPP])
def test_damaged_samples(name, targets):
    if name not in targets:
        pytest.skip(f"{fuzzing.PROGRAM} is not built (scripts/setup)")
    print(f"reproduce: OPD_SEED={SEED}, or scripts/fuzz --seed {SEED} {name}")
    cases = CASES.get(name, 30)
    result = run(name, targets, SEED, cases)
    assert [finding.text for finding, _ in distinct(result.findings)] == [] and result.cases == cases
    assert result.read < cases


def test_the_samples_themselves_are_read(targets, tmp_path):
    import random
    for name, target in targets.items():
        for file, content in target.samples[:3]:
            (tmp_path / file).write_bytes(content)
            assert target.read(tmp_path / file, random.Random(1)) == "ok", (name, file)
            (tmp_path / file).unlink()


def test_the_same_seed_gives_the_same_cases(targets):
    for name in targets:
        assert [fuzzing.case(name, targets, 5, i)[:2] for i in range(4)] == [fuzzing.case(name, targets, 5, i)[:2] for i in range(4)]
        assert len({fuzzing.case(name, targets, seed, 3)[1] for seed in range(8)}) > 4


def target_of(read) -> dict[str, Target]:
    return {"t": Target("a reader", read, [("a", b"12345678")], fuzzing.damaged)}


@pytest.mark.parametrize("what, found", [
    (lambda path: 1 // 0, "ZeroDivisionError"), (lambda path: os.abort(), "ended by signal 6"), (lambda path: bytes(1 << 33), "MemoryError"),
    (lambda path: (path.parent / "stray").write_text("x"), "left stray"), (lambda path: check_text(f"{path}: \x1b[31m; mend it", str(path)), "control characters"),
    (lambda path: check_text(f"{path}: is wrong", str(path)), "without a remedy"), (lambda path: check_text("is wrong; mend it", str(path)), "does not name the file"),
    (lambda path: check_text(f"{path}: {'x' * 5000}; mend it", str(path)), "of 5")])
def test_the_harness_finds(what, found):
    def read(path, rng):
        what(path)
        return "ok"
    result = run("t", target_of(read), 1, 3)
    assert result.cases == 3 and len(result.findings) == 3 and result.read == 0
    assert all(found in finding.text for finding in result.findings)
    assert len(list(distinct(result.findings))) == 1


def test_the_harness_ends_what_does_not_end(monkeypatch):
    monkeypatch.setattr(fuzzing, "SECONDS", 1)

    def read(path, rng):
        while True:
            time.process_time()
    result = run("t", target_of(read), 1, 2)
    assert [finding.text[:13] for finding in result.findings] == ["more than 1 s"] * 2


