"""Figures and claims of the pages: what a script has written is what the measurements say, nothing measured is typed by hand, and
what has been retired stays away. Every rule is a function over text, and is tried on a planted fault as well.

Testplan: DOC-02.
"""
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from opd.reference import ReferenceMissing, module
from opd.trace import FORMATS, Trace
from pages import PAGES, ROOT, cells, page_id, script, section

TABLES = script("measured_tables")
CAPTURED = sorted((ROOT / "traces/captured").glob("*.safetensors"))

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False


# --- written by scripts ------------------------------------------------------------------------------------------------------

def check(name: str, timeout: int) -> None:
    """The committed page is what the script makes of the measurements."""
    result = subprocess.run([sys.executable, ROOT / "scripts" / name, "--check"], capture_output=True, text=True, timeout=timeout, check=False)
    assert result.returncode == 0, f"run scripts/{name}\n{result.stdout}{result.stderr}"
    assert "as committed" in result.stdout and "STALE" not in result.stdout


def test_measured_figures_are_those_of_the_measurements():
    check("measured_tables", 60)


@pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")
def test_the_calibration_of_the_page_is_what_the_program_makes_of_the_corpus():
    check("calibration_tables", 900)


def write_tables(folder: Path, *arguments: str) -> int:
    """scripts/measured_tables on the pages of another folder."""
    tables = script("measured_tables")
    tables.ROOT = folder
    argv, sys.argv = sys.argv, ["measured_tables", *arguments]
    try:
        return tables.main()
    finally:
        sys.argv = argv


@pytest.fixture
def copy(tmp_path) -> Path:
    """Pages of the repository, to be spoilt."""
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        shutil.copy(page, tmp_path / page.relative_to(ROOT))
    return tmp_path


@pytest.mark.parametrize("page, name", [table[:2] for table in TABLES.TABLES])
def test_a_figure_changed_by_hand_is_found(copy, page, name, capsys):
    assert write_tables(copy, "--check") == 0
    file, mark = copy / page, f"<!-- {name}: written by scripts/measured_tables -->\n"
    text = file.read_text(encoding="utf-8")
    begin = text.index(mark) + len(mark)
    digit = begin + max(match.start() for match in re.finditer("[0-9]", text[begin:text.index("<!-- end -->", begin)]))
    file.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1:], encoding="utf-8")
    assert write_tables(copy, "--check") == 1 and f"{file.name}: " in capsys.readouterr().out
    assert write_tables(copy) == 0 and file.read_text(encoding="utf-8") == text


def test_marks_that_are_gone_are_an_error(copy):
    file = copy / "README.md"
    file.write_text(file.read_text(encoding="utf-8").replace("<!-- area: written by", "<!-- written by"), encoding="utf-8")
    with pytest.raises(SystemExit, match="area: written by scripts/measured_tables.* are missing"):
        write_tables(copy, "--check")


# --- typed by hand -----------------------------------------------------------------------------------------------------------

UNIT = re.compile(r"[0-9]\s*(?:[GT]B/s|[kM] (?:beats|samples|cycles)/s|ns\b|µs|ms\b|NAND2)|ms a step|NAND2 \||of [0-9]+ \| [0-9.]+ %")
ASSUMED = ("| bandwidth |", "| host decision |", "| register write |")  # of the modelled GPU, docs/metrics.md


def typed_by_hand(text: str) -> list[str]:
    """Rows of tables, and of output that is shown, with a measured unit outside of what a script has written."""
    text = re.sub(r"<!-- [^>]*: written by scripts/.*?<!-- end -->", "", text, flags=re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    rows += [line for block in re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE) for line in block.splitlines()]
    cited = "](http"  # others' figures, with their source
    return [row for row in rows if UNIT.search(row) and cited not in row and not row.startswith(ASSUMED)]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_measured_table_is_typed_by_hand(page):
    assert typed_by_hand(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("row", ["| cpu statistics | 16.4 GB/s | |", "| tap | 25,459 NAND2 | 14.5 ns |",
                                 "```\nopd   541.74 ms a step\n```", "| lines | 821 of 826 | 99.4 % |"])
def test_a_table_typed_by_hand_is_found(row):
    assert typed_by_hand(f"Words.\n\n{row}\n") != []
    assert typed_by_hand(f"<!-- x: written by scripts/y -->\n{row}\n<!-- end -->\n") == []


# --- figures within sentences --------------------------------------------------------------------------------------------------

def labelled(split: str | None = None) -> int:
    """Runs of the corpus, of one split or all."""
    files = [ROOT / "traces" / folder / "labels.toml" for folder in ("captured", "corpus")]
    runs = [run for file in files for run in tomllib.loads(file.read_text(encoding="utf-8"))["runs"].values()]
    return sum(split in (None, run["split"]) for run in runs)


def planted_faults() -> int:
    return sum(len(entry["faults"]) for entry in json.loads((ROOT / "testbench/formal/sets.json").read_text()).values())


def captured(name: str) -> Trace:
    return Trace.read(ROOT / f"traces/captured/{name}.safetensors")


def overflow() -> Trace:
    return captured("qk_overflow")


def raw_operators(trace: Trace) -> int:
    return sum(len(rows) for rows in trace.raw.values())


def raw_bytes(trace: Trace) -> int:
    return sum(rows.nbytes for rows in trace.raw.values())


def raw_beats(trace: Trace) -> int:
    """Of 512 bits."""
    return sum(-(-row.nbytes // 64) for rows in trace.raw.values() for row in rows)


def headroom(trace: Trace, kind: str) -> np.ndarray:
    """[S]: bits from the largest finite magnitude of all probes of a kind up to the limit of its format."""
    limit = np.array([FORMATS[probe.format].max_value for probe in trace.probes], np.float64)
    with np.errstate(divide="ignore"):
        bits = np.log2(limit) - np.log2(trace.max_abs.astype(np.float64))
    return bits[:, [probe.kind == kind for probe in trace.probes]].min(axis=1)


def least_headroom(name: str, kind: str) -> str:
    return f"{headroom(captured(name), kind).min():.1f}"


def steps_below_4_bits() -> int:
    """In a row, right before the overflow, in its operator."""
    trace = overflow()
    op = [probe.name for probe in trace.probes].index("block.2.attn.qk")
    before = trace.max_abs[:int(np.flatnonzero(trace.nonfinite[:, op])[0]), op] > 65504 / 16
    return len(before) if before.all() else int(np.argmin(before[::-1]))


def microseconds_of_the_modelled_gpu() -> float:
    rows = cells((ROOT / "docs/metrics.md").read_text(encoding="utf-8"))
    return sum(float(row[1].split()[0]) for row in rows if row[1].endswith("µs"))


def kinds_of_models() -> int:
    source = (ROOT / "traces/training/workloads/__init__.py").read_text(encoding="utf-8")
    return len(re.findall(r'^    "\w+": Kind\(', source, re.MULTILINE))


def incident_logs() -> int:
    return len(tomllib.loads((ROOT / "testbench/incident_logs.toml").read_text(encoding="utf-8"))["log"])


def log_rows() -> list[int]:
    """Number of rows of each trace in the first table of docs/incident-logs.md, which a script has written."""
    found = []
    for row in cells(section((ROOT / "docs/incident-logs.md").read_text(encoding="utf-8"), "Logs")):
        several = re.fullmatch(r".*\.([0-9]+) to ([0-9]+)", row[0])  # NAME.1 to 6
        count = int(several[2]) - int(several[1]) + 1 if several else 1
        found += [int(row[3].split(" × ")[0].replace(",", ""))] * count
    return found


def gnmt(detector: str) -> str:
    """What the second table says of a detector on the one log with many overflows."""
    text = section((ROOT / "docs/incident-logs.md").read_text(encoding="utf-8"), "What the detectors say")
    heading = next(line for line in text.splitlines() if line.startswith("| trace |"))
    row = next(line for line in text.splitlines() if "gnmt" in line)
    found = dict(zip(heading.split(" | "), row.split(" | ")))[detector]
    overflows, _, alarms = found.partition(" (")
    return f"{overflows} with {alarms.rstrip(')')}"


def word(number: int) -> str:
    return ("three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen "
            "twenty").split()[number - 3]


# Page, the words around a figure, and what it has to be.
FIGURES = [
    ("README.md", r"([0-9]+) labelled runs", lambda: f"{labelled():,}"),
    ("README.md", r"were chosen on ([0-9]+) of them", lambda: f"{labelled('tuning'):,}"),
    ("README.md", r"the ([0-9]+) held out", lambda: f"{labelled('held-out'):,}"),
    ("docs/corpus.md", r"\n(\w+) kinds of model:", lambda: word(kinds_of_models()).capitalize()),
    ("docs/evaluation.md", r"for the logs of ([0-9]+) public files", lambda: f"{incident_logs()}"),
    ("docs/incident-logs.md", r"published: ([0-9]+) files", lambda: f"{incident_logs()}"),
    ("docs/incident-logs.md", r"([0-9]+) of the [0-9]+ traces have at most 18 rows", lambda: f"{sum(rows <= 18 for rows in log_rows())}"),
    ("docs/incident-logs.md", r"[0-9]+ of the ([0-9]+) traces have at most 18 rows", lambda: f"{len(log_rows())}"),
    ("docs/incident-logs.md", r"\(([0-9]+ of [0-9]+ with [0-9]+) for\s+ZClip", lambda: gnmt("zclip")),
    ("docs/incident-logs.md", r"ZClip, ([0-9]+ of [0-9]+ with [0-9]+) for msprobe", lambda: gnmt("msprobe-turbulence")),
    ("docs/verification.md", r"copies of the RTL, ([0-9]+) in all", lambda: f"{planted_faults()}"),
    ("docs/verification.md", r"\| ([0-9]+) faults in copies of the RTL", lambda: f"{planted_faults()}"),
    ("docs/performance.md", r"`qk_overflow` has ([0-9,]+) of its", lambda: f"{overflow().max_abs.size - raw_operators(overflow()):,}"),
    ("docs/performance.md", r"of its ([0-9,]+) operators as statistics", lambda: f"{overflow().max_abs.size:,}"),
    ("docs/performance.md", r"operators of ([0-9]+) kB\non average", lambda: f"{raw_bytes(overflow()) / raw_operators(overflow()) / 1e3:.0f}"),
    ("docs/metrics.md", r"The sum is ([0-9.]+) µs", lambda: f"{microseconds_of_the_modelled_gpu():.1f}"),
    ("docs/architecture.md", r"use the new mode: ([0-9]+) with both engines", lambda: f"{TABLES.REACTION[TABLES.BOTH]}"),
    ("docs/architecture.md", r"with both engines, ([0-9]+) with the\s+forecast engine alone\.", lambda: f"{TABLES.REACTION[TABLES.FORECAST]}"),
    ("traces/README.md", r"all forward outputs \(([0-9.]+) MB", lambda: f"{sum(raw_bytes(Trace.read(file)) for file in CAPTURED) / 1e6:.1f}"),
    ("traces/README.md", r"MB, ([0-9,]+) beats of 512 bits", lambda: f"{sum(raw_beats(Trace.read(file)) for file in CAPTURED):,}"),
    ("traces/README.md", r"at least ([0-9.]+) bits of headroom forward", lambda: least_headroom("healthy", "activation")),
    ("traces/README.md", r"forward and ([0-9.]+) bits in the scaled gradients", lambda: least_headroom("healthy", "gradient")),
    ("traces/README.md", r"`attn.qk` stays ([0-9.]+) to 4 bits below", lambda: least_headroom("near_limit", "activation")),
    ("traces/README.md", r"come as close as ([0-9.]+) bits", lambda: least_headroom("near_limit", "gradient")),
    ("traces/README.md", r"for ([0-9]+) of 500 steps", lambda: f"{(headroom(captured('near_limit'), 'activation') < 4).sum()}"),
    ("traces/README.md", r"creeps up for ([0-9]+) steps below 4 bits", lambda: f"{steps_below_4_bits()}"),
]


@pytest.mark.parametrize("page, words, value", FIGURES, ids=[f"{page}:{i}" for i, (page, _, _) in enumerate(FIGURES)])
def test_a_figure_in_a_sentence_is_the_one_that_is_counted(page, words, value):
    assert re.findall(words, (ROOT / page).read_text(encoding="utf-8")) == [value()]


def simulated() -> dict[str, set[int]]:
    """Values of the parameters of opd_top in the Verilated devices: those named, and else the defaults of the module."""
    source = (ROOT / "rtl/opd_top.sv").read_text()
    default = {name: int(value) for name, value in re.findall(r"^  parameter .*?(\w+) *= *([0-9]+)", source, re.MULTILINE)}
    cmake = (ROOT / "rtl/CMakeLists.txt").read_text()
    devices = re.findall(r"^opd_add_verilated\(\w+ \w+ opd_top\b(.*?)\)$", cmake, re.MULTILINE | re.DOTALL)
    assert len(devices) > 3
    given = [{name: int(value) for name, value in re.findall(r"(\w+)=([0-9]+)", device)} for device in devices]
    return {name: {device.get(name, value) for device in given} for name, value in default.items()}


def test_values_that_are_simulated_are_those_of_the_page():
    rows = list(cells(section((ROOT / "docs/architecture.md").read_text(encoding="utf-8"), "Parameters")))
    assert {row[0]: {int(value) for value in row[4].split(",")} for row in rows} == simulated()


# --- retired claims --------------------------------------------------------------------------------------------------------------

SOURCES = [ROOT / "README.md"] + [
    file for folder in ("docs", "sw_reference", "systemc", "testbench", "rtl") for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in (".md", ".py", ".js", ".cpp", ".hpp", ".sv", ".rdl") and file != Path(__file__).resolve()]
RETIRED = {
    r"arithmetic (?:it|they) ran (?:with|in)": "nothing computes in a mode",
    r"executed[_ ]in[_ ](?:that )?mode": "operators are issued in a mode; nothing computes in it",
    r"(?:assumed|assuming a) clock of": "the only clock is that of the mapped netlist",
}


def retired(text: str) -> list[str]:
    flat = re.sub(r"\s+(?:///?|#|\*)?\s*", " ", text)  # a claim may be broken over two lines of a comment
    return [f"{match[0]!r}: {why}" for claim, why in RETIRED.items() for match in re.finditer(claim, flat)]


def test_retired_claims_are_nowhere():
    assert len(SOURCES) > 200
    found = {page_id(file): retired(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {name: claims for name, claims in found.items() if claims} == {}


@pytest.mark.parametrize("text", ["/// The mode is the arithmetic it\n///   ran with", "cycles at an assumed clock of 1 GHz",
                                  "`operators_executed_in_mode`"])
def test_a_retired_claim_is_found(text):
    assert len(retired(text)) == 1 and not retired("the mode register's value when the operator was issued")


NOT_RUN = re.compile(r"not (?:yet )?(?:been )?(?:run|measured|compared)|did not run|where there is (?:no|one)|no CUDA|not of one|\bemulat", re.IGNORECASE)


def shown_as_if_it_had_run(text: str) -> list[str]:
    """Rows, lines of pictures and paragraphs that name the CUDA path without saying that it has not run, or is emulated."""
    units = []
    for part in re.split(r"\n\s*\n", text):
        drawn = [line for line in part.splitlines() if line.startswith("|") or re.search("[─╌]", line)]
        units += [*drawn, " ".join(line for line in part.splitlines() if line not in drawn)]
    return [unit for unit in dict.fromkeys(units) if re.search(r"\bcuda\b", unit, re.IGNORECASE) and not NOT_RUN.search(unit)]


@pytest.mark.skipif((ROOT / "docs/measurements/cuda.json").exists(), reason="a run of the CUDA path is committed")
@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/performance.md", "docs/verification.md"])
def test_cuda_is_never_shown_as_if_it_had_run(page):
    assert shown_as_if_it_had_run((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", ["and as a **CPU/CUDA reference**. Traces are replayed\nthrough all of them.",
                                  "| cuda statistics | 300 GB/s |", " a ──► b\n   └─► cuda        the same functors on a GPU\n"])
def test_cuda_shown_as_if_it_had_run_is_found(text):
    assert shown_as_if_it_had_run(f"Words.\n\n{text}\n") != []


# --- one fact in several places --------------------------------------------------------------------------------------------------

SAME_FACT = {
    "lead window": [
        ("testbench/metrics.hpp", r"kLeadWindow = ([0-9]+);"), ("sw_reference/python/opd/evaluate/metrics.py", r"^LEAD_WINDOW = ([0-9]+)"),
        ("sw_reference/python/opd/report.py", r"^LEAD_WINDOW = ([0-9]+)"), ("docs/metrics.md", r"to the incident; at most ([0-9]+)\."),
        ("docs/evaluation.md", r"when the first incident came, at most ([0-9]+)\.")],
    "learning-rate changes, up": [
        ("testbench/operators.cpp", r"now > ([0-9.]+) \* before"), ("sw_reference/python/opd/evaluate/reference.py", r"now > ([0-9.]+) \* before"),
        ("docs/metrics.md", r"lr\[s\] is more than ([0-9.]+) times")],
    "learning-rate changes, down": [
        ("testbench/operators.cpp", r"now < ([0-9.]+) \* before"), ("sw_reference/python/opd/evaluate/reference.py", r"now < ([0-9.]+) \* before"),
        ("docs/metrics.md", r"or less than ([0-9.]+) times")],
    "warm-up of an evaluation": [
        ("sw_reference/python/opd/evaluate/metrics.py", r"^WARM_UP = ([0-9]+)"), ("docs/evaluation.md", r"\*warm-up\*: the first ([0-9]+) samples")],
    "bits of the controller": [
        ("sw_reference/python/opd/evaluate/reference.py", r"^CONTROLLER_BITS = ([0-9]+)"), ("docs/evaluation.md", r"The controller's ([0-9]+) bits")],
    "headroom of a class": [
        ("traces/training/labels.py", r"^NEAR_LIMIT_BITS = ([0-9]+)\.0"), ("traces/README.md", r"never less than ([0-9]+) bits of headroom")],
    "steps that make a run gradual": [
        ("traces/training/labels.py", r"^GRADUAL_STEPS = ([0-9]+)"), ("traces/README.md", r"after at least ([0-9]+) steps in a row")],
}


@pytest.mark.parametrize("fact", SAME_FACT)
def test_a_fact_is_the_same_in_every_place(fact):
    found = [re.findall(words, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE) for file, words in SAME_FACT[fact]]
    assert all(found) and len({value for values in found for value in values}) == 1, dict(zip([file for file, _ in SAME_FACT[fact]], found))
