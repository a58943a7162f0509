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


@pytest.mark.parametrize("rival, sequence", CASES, ids=[f"{rival['package']}-{sequence}" for rival, sequence in CASES])
def test_a_rival_says_what_its_authors_code_says(rival, sequence):
    values = np.array([float(value) for value in VECTORS["sequences"][sequence]])
    finite = np.isfinite(values)
    trace = Trace("x", "healthy", [Probe("x", "activation", "FP32", (2,))], np.arange(len(values)),
                  np.where(finite, values, 0).astype(np.float32)[:, None], (~finite).astype(np.int64)[:, None])
    found = DETECTORS[rival["detector"]].judge(Samples.of(trace)).alarms[:, 0]
    assert np.flatnonzero(found).tolist() == rival["alarms"][sequence]


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
        assert re.search(rf"^\| {rival['detector']} \|.*{rival['package']} {re.escape(rival['version'])}", document, re.MULTILINE)
        if "source" in rival:
            assert f"`{rival['source']}`" in document and re.fullmatch("[0-9a-f]{64}", rival["sha256"])
