"""What the pages claim: figures are those that the scripts wrote, names exist where they are said to be, and the other way round.

Every rule is a function over text, so that each is also tried on a page with a planted fault. Testplan: DOC-01.
"""
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opd.evaluate.reference import ReferenceMissing, module
from opd.registers import CONFIG_RESET
from opd.report import RECORD
from opd.trace import FORMATS, Probe, Trace, TraceWriter, element_statistics

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[a-z]*/README.md")])
SUMMARY_PAGE, METRICS, EVALUATION = ROOT / "docs/formats.md", ROOT / "docs/metrics.md", ROOT / "docs/evaluation.md"

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def script(name: str):
    """A script of scripts/ as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
        loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        loader.exec_module(loaded)
        sys.dont_write_bytecode = writes
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return loaded


def section(text: str, heading: str) -> str:
    """The text below a heading of the second level."""
    parts = re.split(rf"^## {re.escape(heading)}\n", text, flags=re.MULTILINE)
    assert len(parts) == 2, f"## {heading}: {len(parts) - 1} times"
    return re.split(r"^## ", parts[1], flags=re.MULTILINE)[0]


def cells(text: str) -> Iterator[list[str]]:
    """Rows of the tables, without headings."""
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


# --- figures ---------------------------------------------------------------------------------------------------------------

def measured_tables(folder: Path, *arguments: str) -> int:
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
    for page in ROOT.glob("docs/*.md"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        shutil.copy(page, tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


MEASURED = [(page, name) for page, name, _, _ in script("measured_tables").TABLES]


def test_measured_figures_are_those_of_the_measurements():
    result = subprocess.run([sys.executable, ROOT / "scripts/measured_tables", "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, f"run scripts/measured_tables\n{result.stdout}{result.stderr}"
    assert result.stdout.count("as committed") == len({page for page, _ in MEASURED})


@pytest.mark.parametrize("page, name", MEASURED)
def test_a_figure_changed_by_hand_is_found(copy, page, name, capsys):
    assert measured_tables(copy, "--check") == 0
    file = copy / page
    text = file.read_text(encoding="utf-8")
    begin = text.index(f"<!-- {name}: written by scripts/measured_tables -->\n") + len(f"<!-- {name}: written by scripts/measured_tables -->\n")
    digit = max(match.start() for match in re.finditer("[0-9]", text[begin:text.index("<!-- end -->", begin)])) + begin
    file.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1:], encoding="utf-8")
    assert measured_tables(copy, "--check") == 1
    assert f"{file.name}: " in capsys.readouterr().out and measured_tables(copy) == 0
    assert file.read_text(encoding="utf-8") == text


def test_marks_that_are_gone_are_an_error(copy):
    file = copy / "README.md"
    file.write_text(file.read_text(encoding="utf-8").replace("<!-- area: written by", "<!-- written by"), encoding="utf-8")
    with pytest.raises(SystemExit, match="area: written by scripts/measured_tables.* are missing"):
        measured_tables(copy, "--check")


UNIT = re.compile(r"[0-9]\s*(?:GB/s|TB/s|[kM] (?:beats|samples|cycles)/s|ns\b|µs|ms\b|NAND2)|ms a step|NAND2 \||of [0-9]+ \| [0-9.]+ %")


def typed_by_hand(text: str) -> list[str]:
    """Rows of tables, and of output that is shown, with a measured unit outside of what a script has written."""
    text = re.sub(r"<!-- [^>]*: written by scripts/.*?<!-- end -->", "", text, flags=re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    rows += [line for block in re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE) for line in block.splitlines()]
    return [row for row in rows if UNIT.search(row) and "](http" not in row  # a source is cited
            and not row.startswith(("| bandwidth |", "| host decision |", "| register write |"))]  # assumptions of metrics.md


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_measured_table_is_typed_by_hand(page):
    assert typed_by_hand(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("row", ["| cpu statistics | 16.4 GB/s | |", "| tap | 25,459 NAND2 | 14.5 ns |", "```\nopd   541.74 ms a step\n```",
                                 "| lines | 821 of 826 | 99.4 % |"])
def test_a_table_typed_by_hand_is_found(row):
    assert typed_by_hand(f"Words.\n\n{row}\n") != []
    assert typed_by_hand(f"<!-- x: written by scripts/y -->\n{row}\n<!-- end -->\n") == []


def labelled() -> list[dict]:
    return [run for folder in ("captured", "corpus") for run in tomllib.loads((ROOT / "traces" / folder / "labels.toml").read_text())["runs"].values()]


def planted_faults() -> int:
    return sum(len(entry["faults"]) for entry in json.loads((ROOT / "testbench/formal/sets.json").read_text()).values())


def raw_elements(trace: Trace) -> tuple[int, int]:
    """Operators that go through the datapath, and the bytes of them all."""
    return sum(len(rows) for rows in trace.raw.values()), sum(rows.nbytes for rows in trace.raw.values())


def captured(name: str) -> Trace:
    return Trace.read(ROOT / f"traces/captured/{name}.safetensors")


def overflow_trace() -> Trace:
    return captured("qk_overflow")


def headroom(trace: Trace, kind: str) -> np.ndarray:
    """[S]: bits between the largest magnitude of all probes of a kind and the limit of its format, finite samples only."""
    limit = np.array([FORMATS[probe.format].max_value for probe in trace.probes], np.float64)
    with np.errstate(divide="ignore"):
        bits = np.log2(limit) - np.log2(trace.max_abs.astype(np.float64))
    return bits[:, [probe.kind == kind for probe in trace.probes]].min(axis=1)


def steps_below_4_bits() -> int:
    """In a row, right before the overflow, in its operator."""
    trace = overflow_trace()
    op = [probe.name for probe in trace.probes].index("block.2.attn.qk")
    before = trace.max_abs[:int(np.flatnonzero(trace.nonfinite[:, op])[0]), op] > 65504 / 16
    return len(before) if before.all() else int(np.argmin(before[::-1]))


def number(value: int) -> str:
    return f"{value:,}"


# Page, the words around a figure, and where the figure comes from.
FIGURES = [
    ("README.md", r"\n([0-9]+) labelled runs of", lambda: number(len(labelled()))),
    ("README.md", r"were chosen on ([0-9]+) of them", lambda: number(sum(run["split"] == "tuning" for run in labelled()))),
    ("README.md", r"these are the ([0-9]+) held out", lambda: number(sum(run["split"] == "held-out" for run in labelled()))),
    ("docs/verification.md", r"copies of the RTL, ([0-9]+) in all", lambda: number(planted_faults())),
    ("docs/verification.md", r"\| ([0-9]+) faults in copies of the RTL", lambda: number(planted_faults())),
    ("docs/performance.md", r"`qk_overflow` has ([0-9,]+) of its", lambda: number(overflow_trace().max_abs.size - raw_elements(overflow_trace())[0])),
    ("docs/performance.md", r"of its ([0-9,]+) operators as statistics", lambda: number(overflow_trace().max_abs.size)),
    ("docs/performance.md", r"operators of ([0-9]+) kB\non average", lambda: f"{raw_elements(overflow_trace())[1] / raw_elements(overflow_trace())[0] / 1e3:.0f}"),
    ("traces/README.md", r"all forward outputs \(([0-9.]+) MB",
     lambda: f"{sum(raw_elements(Trace.read(file))[1] for file in (ROOT / 'traces/captured').glob('*.safetensors')) / 1e6:.1f}"),
    ("traces/README.md", r"all forward outputs \([0-9.]+ MB, ([0-9,]+) beats",
     lambda: number(sum(-(-row.nbytes // 64) for file in (ROOT / "traces/captured").glob("*.safetensors") for rows in Trace.read(file).raw.values() for row in rows))),
    ("traces/README.md", r"at least ([0-9.]+) bits of headroom forward", lambda: f"{headroom(captured('healthy'), 'activation').min():.1f}"),
    ("traces/README.md", r"forward and ([0-9.]+) bits in the scaled gradients", lambda: f"{headroom(captured('healthy'), 'gradient').min():.1f}"),
    ("traces/README.md", r"`attn.qk` stays ([0-9.]+) to 4 bits below", lambda: f"{headroom(captured('near_limit'), 'activation').min():.1f}"),
    ("traces/README.md", r"for ([0-9]+) of 500 steps", lambda: number(int((headroom(captured("near_limit"), "activation") < 4).sum()))),
    ("traces/README.md", r"come as close as ([0-9.]+) bits", lambda: f"{headroom(captured('near_limit'), 'gradient').min():.1f}"),
    ("traces/README.md", r"creeps up for ([0-9]+) steps below 4 bits", lambda: number(steps_below_4_bits())),
    ("docs/metrics.md", r"The sum is ([0-9.]+) µs", lambda: f"{sum(float(row[1].split()[0]) for row in cells(METRICS.read_text()) if row[1].endswith('µs')):.1f}"),
    ("docs/architecture.md", r"use the new mode: ([0-9]+) with both engines", lambda: number(script("measured_tables").REACTION["both engines"])),
    ("docs/architecture.md", r"with both engines, ([0-9]+) with the\s+forecast engine alone\.", lambda: number(script("measured_tables").REACTION["forecast engine"])),
]


@pytest.mark.parametrize("page, words, value", FIGURES, ids=[f"{page}:{i}" for i, (page, _, _) in enumerate(FIGURES)])
def test_a_figure_in_the_text_is_the_one_that_is_counted(page, words, value):
    found = re.findall(words, (ROOT / page).read_text(encoding="utf-8"))
    assert found == [value()]


def simulated() -> dict[str, set[int]]:
    """Values of the parameters of opd_top in the Verilated devices: those named, and else the defaults of the module."""
    module_text = (ROOT / "rtl/opd_top.sv").read_text()
    default = {name: int(re.sub(r".*'[bd]", "", value)) for name, value in re.findall(r"^  parameter .*?(\w+) *= *([\w']+)", module_text, re.MULTILINE)}
    cmake = (ROOT / "rtl/CMakeLists.txt").read_text()
    values: dict[str, set[int]] = {name: set() for name in default}
    devices = re.findall(r"^opd_add_verilated\(\w+ \w+ opd_top\b(.*?)\)$", cmake, re.MULTILINE | re.DOTALL)
    assert len(devices) > 3
    for device in devices:
        given = dict(re.findall(r"(\w+)=([0-9]+)", device))
        for name in default:
            values[name].add(int(given.get(name, default[name])))
    return values


def test_values_that_are_simulated_are_those_of_the_page():
    rows = list(cells(section((ROOT / "docs/architecture.md").read_text(), "Parameters")))
    assert {row[0]: {int(value) for value in row[4].split(",")} for row in rows} == simulated()


@pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")
def test_the_calibration_of_the_page_is_what_the_program_makes_of_the_corpus():
    result = subprocess.run([sys.executable, ROOT / "scripts/calibration_tables", "--check"], capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, f"run scripts/calibration_tables\n{result.stdout}{result.stderr}"
    assert "as committed" in result.stdout


# --- retired claims --------------------------------------------------------------------------------------------------------

SOURCES = [file for folder in ("docs", "sw_reference", "systemc", "testbench", "rtl") for file in sorted((ROOT / folder).rglob("*"))
           if file.suffix in (".md", ".py", ".js", ".cpp", ".hpp", ".sv", ".rdl") and file != Path(__file__).resolve()] + [ROOT / "README.md"]
RETIRED = {
    r"arithmetic (?:it|they) ran (?:with|in)": "nothing computes in a mode",
    r"(?:assumed|assuming a) clock of": "the only clock is that of the mapped netlist",
    r"executed[_ ]in[_ ](?:that )?mode": "operators are issued in a mode; nothing computes in it",
}


def retired(text: str) -> list[str]:
    flat = re.sub(r"\s+(?:///?|#|\*)?\s*", " ", text)  # a claim may be broken over two lines of a comment
    return [f"{match[0]!r}: {why}" for claim, why in RETIRED.items() for match in re.finditer(claim, flat)]


def test_retired_claims_are_nowhere():
    assert len(SOURCES) > 200
    assert {page_id(file): retired(file.read_text(encoding="utf-8")) for file in SOURCES if retired(file.read_text(encoding="utf-8"))} == {}


def test_a_retired_claim_is_found():
    assert retired("/// The mode is the arithmetic it\n///   ran with") and retired("cycles at an assumed clock of 1 GHz") and retired("operators_executed_in_mode")
    assert not retired("the mode register's value when the operator was issued")


def shown_as_if_it_had_run(text: str) -> list[str]:
    """Rows, pictures and paragraphs that name the CUDA path among those that do their work, without saying that it has not run."""
    says = re.compile(r"not (?:yet )?(?:been )?(?:run|measured|compared)|did not run|where there is (?:no|one)|no CUDA|not of one", re.IGNORECASE)
    units = []
    for part in re.split(r"\n\s*\n", text):
        lines = part.splitlines()
        units += [line for line in lines if line.startswith("|") or "──►" in line or "─►" in line or "╌►" in line]
        units += [line for line in lines if "cuda" in line.lower() and re.search(r"[─╌]", line)]
        words = " ".join(line for line in lines if not line.startswith("|") and not re.search(r"[─╌]", line))
        units.append(words)
    return [unit for unit in dict.fromkeys(units) if re.search(r"\bcuda\b", unit, re.IGNORECASE) and not says.search(unit)]


@pytest.mark.skipif((ROOT / "docs/measurements/cuda.json").exists(), reason="a run of the CUDA path is committed")
@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/performance.md", "docs/verification.md"])
def test_cuda_is_never_shown_as_if_it_had_run(page):
    assert shown_as_if_it_had_run((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", ["and as a **CPU/CUDA reference**. Traces are replayed\nthrough all of them.", "| cuda statistics | 300 GB/s |",
                                  " a ──► b\n   └─► cuda        the same functors on a GPU\n"])
def test_cuda_shown_as_if_it_had_run_is_found(text):
    assert shown_as_if_it_had_run(f"Words.\n\n{text}\n") != []


# --- keys of the files that programs write -----------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"<[^>]+>")


def documented_keys(text: str) -> dict[str, set[str]]:
    """Object path -> its keys, of a table with the columns object, keys, content."""
    found: dict[str, set[str]] = {}
    objects: list[str] = []
    for row in cells(text):
        if row[0]:
            objects = quoted(row[0]) or [""]
        for path in objects:
            known = found.setdefault(path, set())
            assert not known & set(quoted(row[1])), f"{path}: {known & set(quoted(row[1]))} twice"
            known |= set(quoted(row[1]))
    return found


def objects_of(value, path: str = "") -> Iterator[tuple[str, dict]]:
    """Every object below a JSON value with its path, [] for the elements of lists."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from objects_of(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from objects_of(inner, f"{path}[]")


def wrong_keys(documented: dict[str, set[str]], files: list[dict]) -> list[str]:
    """Keys of the files that the table lacks, and keys of the table that none of the files has."""
    patterns = {path: re.compile(PLACEHOLDER.sub("@", re.escape(PLACEHOLDER.sub("@", path))).replace("@", r"[^.\[\]]+(?:\.sv)?")) for path in documented}
    wrong, seen = [], {path: set() for path in documented}
    for content in files:
        for path, keys in objects_of(content):
            fits = [name for name in documented if name == path] or [name for name, pattern in patterns.items() if pattern.fullmatch(path)]
            if not fits:
                wrong.append(f"{path}: an object that no row describes")
                continue
            any_name = {key for key in documented[fits[0]] if PLACEHOLDER.fullmatch(key)}
            unknown = set() if any_name else set(keys) - documented[fits[0]]
            wrong += [f"{path}.{key}: not documented" for key in unknown]
            seen[fits[0]] |= set(keys) | (any_name if keys else set())
    wrong += [f"{path}.{key}: documented, and in no file" for path, keys in documented.items() for key in keys - seen[path]]
    return sorted(set(wrong))


def opd(*arguments, expect: int = 0) -> None:
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"


@pytest.fixture(scope="module")
def summaries(tmp_path_factory) -> list[dict]:
    """summary.json of two replays: one of a trace that drifts into an overflow, with a learning rate that jumps; one with a mismatch."""
    folder = tmp_path_factory.mktemp("summaries")
    writer = TraceWriter("drift", "gradual", [Probe("a", "activation", "FP16", (1024,)), Probe("b", "activation", "FP16", (1024,))])
    rng = np.random.default_rng(3)
    for step in range(64):
        with np.errstate(over="ignore"):
            rows = {name: (rng.uniform(0.5, 1.0, 1024) * 2.0 ** (step * slope)).astype(np.float16) for name, slope in (("a", 0.3), ("b", 0.0))}
        statistics = [element_statistics(rows[name]) for name in ("a", "b")]
        members = {key: np.array([s[key] for s in statistics], np.float32 if key == "max_abs" else np.int64)
                   for key in ("max_abs", "nonfinite", "saturated", "subnormal", "zero")}
        writer.add_step(step, raw=rows if step % 2 else None, loss=np.float32(1.0), lr=np.float32(1e-3 if step < 32 else 1e-4), **members)
    writer.write(folder / "drift.safetensors")
    opd("replay", folder / "drift.safetensors", "--out", folder / "equal")
    opd("replay", folder / "drift.safetensors", "--out", folder / "fault", "--plant-fault", "rtl", expect=1)
    opd("replay", folder / "drift.safetensors", "--out", folder / "fault-cpu", "--plant-fault", "cpu", expect=1)
    return [json.loads((folder / name / "summary.json").read_text()) for name in ("equal", "fault", "fault-cpu")]


@needs_program
def test_every_key_of_the_summary_is_documented_and_every_documented_key_is_there(summaries):
    assert wrong_keys(documented_keys(section(SUMMARY_PAGE.read_text(), "summary.json")), summaries) == []


@needs_program
@pytest.mark.parametrize("old, new, told", [
    ("`stall_cycles`, ", "", "traces[].reaction_and_overhead[].stall_cycles: not documented"),
    ("`microseconds_per_step`", "`microseconds_per_step`, `reread_energy`", "traces[].reaction_and_overhead[].reread_energy: documented, and in no file"),
    ("| `traces[].host.hints[].factors` |", "| `traces[].factors` |", "traces[].host.hints[].factors: an object that no row describes"),
    ("| `config` | `<field>` |", "| `config` | `jump_threshold` |", "config.z_threshold: not documented"),
])
def test_a_key_that_only_one_of_them_has_is_found(summaries, old, new, told):
    page = section(SUMMARY_PAGE.read_text(), "summary.json")
    assert old in page
    assert told in wrong_keys(documented_keys(page.replace(old, new, 1)), summaries)


def unknown_names(text: str, known: set[str]) -> set[str]:
    """Quoted names of the form of a key that are none."""
    return {name for name in quoted(text) if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", name)} - known


@needs_program
def test_metrics_names_keys_of_the_summary(summaries):
    known = {key for content in summaries for _, keys in objects_of(content) for key in keys}
    others = {"first_bad_op", "opd_top"}  # a key of the trace, a module
    text = METRICS.read_text()
    assert unknown_names(text, known | others) == set()
    assert unknown_names(text + " `reread_energy_nanojoule_per_operator` ", known | others) == {"reread_energy_nanojoule_per_operator"}


NAMED_BY_VALUE = {"recall_by_class", "operations_by_kind", "settings",  # their keys are classes, operations, thresholds,
                  "fields", "raised_by_flag"}  # registers, flags


def key_names(value) -> set[str]:
    """Names of all keys below a JSON value."""
    if isinstance(value, list):
        return set().union(*map(key_names, value))
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for key, inner in value.items():
        found |= set().union(*map(key_names, inner.values())) if key in NAMED_BY_VALUE else key_names(inner)
    return found


def wrong_names(text: str, content: dict) -> list[str]:
    """Like wrong_keys, by name alone. `_interval` beside a key documents its interval."""
    told = {part.removesuffix("[]") for row in cells(text) for cell in row[:2] for name in quoted(cell) for part in name.split(".")}
    told |= {part for name in quoted(text.partition("|")[0]) for part in name.split(".")}
    told = {name for name in told if re.fullmatch(r"[a-z][a-z0-9_]*", name)}
    keys = key_names(content)
    intervals = {f"{name.removesuffix('_per_1000')}_interval" for name in told} if "`_interval`" in text else set()
    return [f"{name}: not documented" for name in sorted(keys - told - intervals)] + [f"{name}: documented, and not there" for name in sorted(told - keys)]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory) -> dict:
    if not BUILT:
        pytest.skip("opd._reference is not built (target opd_python)")
    from opd.evaluate.command import evaluate

    return evaluate([str(ROOT / "traces" / "captured")], names=["forecast", "nonfinite-only"])


def test_every_key_of_the_evaluation_is_documented_and_every_documented_key_is_there(evaluation):
    assert wrong_names(section(EVALUATION.read_text(), "evaluation.json"), evaluation) == []


def test_a_key_of_the_evaluation_that_only_one_has_is_found(evaluation):
    text = section(EVALUATION.read_text(), "evaluation.json")
    assert "state_bits: not documented" in wrong_names(text.replace("`state_bits`, ", "", 1), evaluation)
    assert "state_bytes: documented, and not there" in wrong_names(text.replace("`state_bits`, ", "`state_bits`, `state_bytes`, ", 1), evaluation)


def test_evaluation_names_its_own_keys_elsewhere_too(evaluation):
    paths = {".".join(key for key in path.split(".")) for path in quoted(section(EVALUATION.read_text(), "Goals"))}
    entry = evaluation["detectors"][0]
    for path in (path for path in paths if "." in path or path in entry):
        value = entry
        for key in path.split("."):
            assert key in value, path
            value = value[key]


@pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")
def test_every_key_of_a_calibration_is_documented_and_every_documented_key_is_there(tmp_path, capsys):
    from opd.calibrate.command import main

    labels = tomllib.loads((ROOT / "traces/corpus/labels.toml").read_text())["runs"]
    healthy = [ROOT / f"traces/corpus/{name}.safetensors" for name, label in labels.items() if label["class"] == "healthy"]
    smallest = min(healthy, key=lambda file: file.stat().st_size)
    traces = [*(ROOT / f"traces/captured/{name}.safetensors" for name in ("healthy", "near_limit")), smallest]
    assert main([*map(str, traces), "--out", str(tmp_path / "device.json")]) in (0, 3)
    text, content = section((ROOT / "docs/calibration.md").read_text(), "`calibration` of the file"), json.loads((tmp_path / "device.json").read_text())
    assert wrong_names(text, content["calibration"]) == []
    assert "replay_alarms: not documented" in wrong_names(text.replace("`replay_alarms`", ""), content["calibration"])


# --- records, registers, options, files, links -------------------------------------------------------------------------------

def test_the_record_of_the_page_is_the_record():
    sizes = {"u8": "u1", "u16": "<u2", "u32": "<u4"}
    told = [(int(row[0]), np.dtype(sizes[row[1]]), row[2]) for row in cells(section(SUMMARY_PAGE.read_text(), "OpRecord"))]
    assert told == [(offset, dtype, name) for name, (dtype, offset) in RECORD.fields.items()]
    header = (ROOT / "sw_reference/include/opd/types/record.hpp").read_text()
    body = re.search(r"struct OpRecord \{(.*?)\n\};", header, re.DOTALL)[1]
    declared = re.findall(r"^\s+(?:std::uint(?:8|16|32)_t|\w+) (\w+)(?:\{|;| =)", body, re.MULTILINE)
    assert declared == [name for _, _, name in told]


def registers() -> set[str]:
    page = (ROOT / "docs/registers.md").read_text()
    return {f"{row[1]}.{row[2]}" for row in cells(page) if row[0].startswith("0x")}


def unknown_registers(text: str, known: set[str]) -> set[str]:
    return {name for name in re.findall(r"\b[A-Z][A-Z0-9_]{2,}\.[A-Z][A-Z0-9_]+\b", text) if not name.endswith((".TOML", ".JSON"))} - known


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_registers_that_a_page_names_exist(page):
    known = registers()
    assert len(known) > 80
    assert unknown_registers(page.read_text(encoding="utf-8"), known) == set()


def test_a_register_that_does_not_exist_is_found():
    assert unknown_registers("RISK.STABLE, then RISK.UNSTABLE", registers()) == {"RISK.UNSTABLE"}


@pytest.mark.parametrize("page", ["docs/numerics.md", "docs/calibration.md", "docs/controller.md"])
def test_fields_of_the_configuration_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    fields = {name for name in quoted(text) if re.match(r"(?:forecast|jump|critical|baseline|published|desensitise|z|d2|hint|limit|risk|quiet|safe|weight)_", name)}
    assert fields and fields - set(CONFIG_RESET) == set()


PROGRAMS = [file for folder in ("testbench", "sw_reference/python", "scripts", "traces/training") for file in (ROOT / folder).rglob("*")
            if file.is_file() and "tests" not in file.parts and (file.suffix in (".cpp", ".hpp", ".py") or file.parent.name == "scripts")]
OTHERS_OPTIONS = {"--lr"}  # of a user's own script, in an example


def unknown_options(text: str, known: str) -> set[str]:
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))) - OTHERS_OPTIONS
    return {option for option in found if not re.search(rf"(?<![\w-]){option}(?![\w-])", known)}


@pytest.fixture(scope="module")
def program_text() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in PROGRAMS)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_that_a_page_names_exist(page, program_text):
    assert unknown_options(page.read_text(encoding="utf-8"), program_text) == set()


def test_an_option_that_does_not_exist_is_found(program_text):
    assert unknown_options("`opd replay --out DIR --fast-forward`", program_text) == {"--fast-forward"}


def unknown_variables(text: str) -> set[str]:
    """Variables of the environment and of CMake that no source reads."""
    sources = [*PROGRAMS, *(ROOT / "scripts").iterdir(), *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("*/*/CMakeLists.txt"), ROOT / "CMakeLists.txt",
               *(file for file in (ROOT / "testbench/tests").rglob("*") if file.suffix in (".py", ".cpp", ".hpp") and file != Path(__file__).resolve())]
    known = {name for file in sources if file.is_file() for name in re.findall(r"\bOPD_[A-Z_]+\b", file.read_text(encoding="utf-8"))}
    return set(re.findall(r"\bOPD_[A-Z_]+\b", text)) - known


def test_variables_that_pages_name_exist():
    assert unknown_variables("\n".join(page.read_text(encoding="utf-8") for page in PAGES)) == set()
    assert unknown_variables("`OPD_SOAK=full` and `OPD_SOUP=hot`") == {"OPD_SOUP"}


def missing_files(page: Path, text: str) -> set[str]:
    """Files and folders that a page quotes by path and that are not there. Paths are from the root, or from the page or folder named."""
    roots = [ROOT, page.parent, ROOT / "sw_reference" / "include", ROOT / "sw_reference" / "python", ROOT / "sw_reference", ROOT / "rtl", ROOT / "traces",
             ROOT / "traces" / "training"]
    outside = {"a/b", "N/A", "zclip/zclip.py", "optim/skip_step_optimizer.py", "raw/"}  # others' repositories; words that are no path
    made = ("out/", "build/", "/opd/", "../shared/")  # by the programs; types of reports; what is not part of the repository
    found = {name for name in quoted(text) if re.fullmatch(r"[\w./-]+/[\w./-]*", name)} - outside
    return {name for name in found if not name.startswith(made) and not any((root / name).exists() for root in roots)}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_a_page_names_exist(page):
    assert missing_files(page, page.read_text(encoding="utf-8")) == set()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_files_and_links_that_lead_nowhere_are_found():
    page = ROOT / "README.md"
    assert missing_files(page, "`docs/gone.md` beside `docs/metrics.md`") == {"docs/gone.md"}
    assert broken_links(page, "[a](docs/gone.md) [b](docs/metrics.md#gone) [c](docs/metrics.md#overhead) [d](#gone) [e](https://x.org)") == [
        "docs/gone.md", "docs/metrics.md#gone", "#gone"]


# --- commands ------------------------------------------------------------------------------------------------------------------

def subcommands(text: str) -> set[str]:
    return set(re.findall(r"(?:build/opd|python -m opd) ([a-z]\w*)", text))


@needs_program
def test_commands_that_pages_show_exist():
    told = set().union(*(subcommands(page.read_text(encoding="utf-8")) for page in PAGES))
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert told >= {"replay", "info", "bench", "capture", "import", "evaluate", "calibrate"}
    assert {name for name in told if not re.search(rf"^\s+{name}\b", listed, re.MULTILINE)} == set()


# --- the measured reaction -------------------------------------------------------------------------------------------------------

@needs_program
def test_the_reaction_that_pages_name_is_what_a_replay_counts(summaries):
    rtl = summaries[0]["traces"][0]["reaction_and_overhead"][0]
    assert rtl["path"] == "rtl" and rtl["reaction"]["cycles"]["maximum"] == script("measured_tables").REACTION["both engines"]
    text = (ROOT / "testbench/tests/system/crosscheck_test.cpp").read_text()
    assert script("measured_tables").REACTION["forecast engine"] == 4 and "ForecastEngineAloneDecidesFourCycles" in text
