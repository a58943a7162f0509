"""opd.evaluate, the rivals: each against what its authors' own code says of fixed sequences (rival_vectors.json, written by
scripts/rival_vectors, which is not run here)."""
import json
import re
from pathlib import Path

import numpy as np
import pytest

from opd.evaluate import averages, limits, maxima
from opd.evaluate.detector import Samples
from opd.trace import Probe, Trace

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads(Path(__file__).with_name("rival_vectors.json").read_text(encoding="ascii"))
DETECTORS = {detector.name: detector for detector in (
    averages.ZClip(), averages.OlmoSkipStep(), averages.MsprobeTurbulence(), maxima.MegatronSpike(),
    maxima.TransformerEngineAmax(), limits.NonfiniteOnly())}
CASES = [(rival, sequence) for rival in VECTORS["rivals"] for sequence in rival["alarms"]]


def alarms(detector, sequence, threshold=None) -> list[int]:
    """Samples of a sequence with an alarm."""
    values = np.array([float(value) for value in VECTORS["sequences"][sequence]])
    finite = np.isfinite(values)
    trace = Trace("x", "healthy", [Probe("x", "activation", "FP32", (2,))], np.arange(len(values)),
                  np.where(finite, values, 0).astype(np.float32)[:, None], (~finite).astype(np.int64)[:, None])
    return np.flatnonzero(detector.judge(Samples.of(trace), threshold).alarms[:, 0]).tolist()


@pytest.mark.parametrize("rival, sequence", CASES, ids=[f"{rival['package']}-{sequence}" for rival, sequence in CASES])
def test_a_rival_says_what_its_authors_code_says(rival, sequence):
    assert alarms(DETECTORS[rival["detector"]], sequence) == rival["alarms"][sequence]


@pytest.mark.parametrize("name, settings, threshold", [
    ("zclip", {"alpha": 0.96}, None), ("zclip", {"warmup_steps": 24}, None), ("zclip", {"warmup_steps": 26}, None),
    ("zclip", {"eps": 0.1}, None), ("zclip", {}, 2.45), ("zclip", {}, 2.55),
    ("olmo-6-sigma", {"rolling_interval_length": 127}, None), ("olmo-6-sigma", {"rolling_interval_length": 130}, None),
    ("olmo-6-sigma", {}, 5.8), ("olmo-6-sigma", {}, 6.2),
    ("msprobe-turbulence", {"beta": 0.985}, None), ("msprobe-turbulence", {}, 1.47), ("msprobe-turbulence", {}, 1.53),
    ("megatron-10x", {"num_samples": 99}, None), ("megatron-10x", {"num_samples": 101}, None),
    ("megatron-10x", {}, 9.5), ("megatron-10x", {}, 10.5),
    ("te-amax-history", {"amax_history_len": 1023}, None), ("te-amax-history", {"amax_history_len": 1025}, None),
    ("te-amax-history", {}, 1.02)])
def test_a_rule_that_differs_by_little_fails_on_the_vectors(name, settings, threshold):
    rule = type(DETECTORS[name])()
    rule.settings = {**rule.settings, **settings}
    rival = next(rival for rival in VECTORS["rivals"] if rival["detector"] == name)
    assert any(alarms(rule, sequence, threshold) != told for sequence, told in rival["alarms"].items())


def test_the_vectors_tell_the_rules_apart():
    """Every rival is there, alarms in some sequence and is quiet in much of it, and no two are the same rule."""
    assert {rival["detector"] for rival in VECTORS["rivals"]} == set(DETECTORS)
    told = {}
    for rival in VECTORS["rivals"]:
        alarms = sum(map(len, rival["alarms"].values()))
        samples = sum(len(VECTORS["sequences"][name]) for name in rival["alarms"])
        assert 0 < alarms < samples / 2
        told.setdefault(json.dumps(rival["alarms"]), []).append(rival["detector"])
    assert sorted(map(len, told.values())) == [1, 1, 1, 1, 1, 2]  # transformers and torch: the same check
    for what in ("published", "fpchecker-5-percent", "static-headroom"):
        assert VECTORS["without_code"][what]


def test_the_documentation_names_what_was_run():
    document = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    packages = dict(line.split()[2:4] for line in (ROOT / "scripts" / "packages.txt").read_text().splitlines()
                    if line.startswith("pypi"))
    for rival in VECTORS["rivals"]:
        assert packages[rival["package"]] == rival["version"]
        named = f"{rival['package']} {re.escape(rival['version'])}"
        assert re.search(rf"^\| {rival['detector']} \|.*{named}", document, re.MULTILINE)
        if "source" in rival:
            assert f"`{rival['source']}`" in document and re.fullmatch("[0-9a-f]{64}", rival["sha256"])
