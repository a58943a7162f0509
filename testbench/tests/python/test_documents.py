"""Names on the pages: what a page calls a key, a register, an option, a variable, a command, a file or a link is one, and every key
of a file that a program writes is on its page. Every rule is a function over text, and is tried on a planted fault as well.

Testplan: DOC-01.
"""
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from opd.reference import ReferenceMissing, module
from opd.registers import CONFIG_RESET
from opd.report import RECORD
from opd.trace import FORMATS as ELEMENTS
from opd.trace import KINDS, LABELS, Probe, TraceWriter, element_statistics
from opd.trace_layout import KERNELS
from operand_trace import attention
from pages import PAGES, ROOT, cells, page_id, quoted, script, section

PROGRAM = Path(os.environ.get("OPD_PROGRAM", ROOT / "build" / "opd"))
FORMATS, METRICS, EVALUATION, CALIBRATION, REGISTERS, VECTOR_UNIT = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("formats", "metrics", "evaluation", "calibration", "registers", "vector_unit"))
SUMMARY_KEYS = section(FORMATS, "summary.json")
EVALUATION_KEYS = section(EVALUATION, "evaluation.json")
CALIBRATION_KEYS = section(CALIBRATION, "`calibration` of the file")

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the opd program is not built (scripts/setup)")
needs_reference = pytest.mark.skipif(not BUILT, reason="opd._reference is not built (target opd_python)")


# --- keys by their whole path: summary.json ------------------------------------------------------------------------------------

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


def as_pattern(path: str) -> re.Pattern:
    """A path of the page, with any name for each placeholder."""
    return re.compile("[^.]+".join(map(re.escape, PLACEHOLDER.split(path))))


def wrong_keys(documented: dict[str, set[str]], files: list[dict]) -> list[str]:
    """Keys of the files that the table lacks, and keys of the table that none of the files has."""
    patterns = {path: as_pattern(path) for path in documented}
    wrong, seen = set(), {path: set() for path in documented}
    for path, keys in (found for content in files for found in objects_of(content)):
        row = path if path in documented else next((name for name, pattern in patterns.items() if pattern.fullmatch(path)), None)
        if row is None:
            wrong.add(f"{path}: an object that no row describes")
            continue
        any_name = {key for key in documented[row] if PLACEHOLDER.fullmatch(key)}
        if not any_name:
            wrong |= {f"{path}.{key}: not documented" for key in set(keys) - documented[row]}
        seen[row] |= set(keys) | (any_name if keys else set())
    wrong |= {f"{path}.{key}: documented, and in no file" for path, keys in documented.items() for key in keys - seen[path]}
    return sorted(wrong)


def opd(*arguments, expect: int = 0) -> None:
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == expect, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"


@pytest.fixture(scope="module")
def summaries(tmp_path_factory) -> list[dict]:
    """summary.json of five replays of a trace that drifts into an overflow, with a learning rate that jumps: three have a mismatch, one of
    them of stored state, one has a policy; and of one that computes."""
    folder = tmp_path_factory.mktemp("summaries")
    slopes = {"a": 0.3, "b": 0.0}  # doublings a step
    writer = TraceWriter("drift", "gradual", [Probe(name, "activation", "FP16", (1024,)) for name in slopes])
    rng = np.random.default_rng(3)
    for step in range(64):
        with np.errstate(over="ignore"):
            rows = {name: (rng.uniform(0.5, 1.0, 1024) * 2.0 ** (step * slope)).astype(np.float16) for name, slope in slopes.items()}
        statistics = [element_statistics(rows[name]) for name in slopes]
        members = {key: np.array([s[key] for s in statistics], np.float32 if key == "max_abs" else np.int64)
                   for key in ("max_abs", "nonfinite", "saturated", "subnormal", "zero")}
        writer.add_step(step, raw=rows if step % 2 else None, loss=np.float32(1.0), lr=np.float32(1e-3 if step < 32 else 1e-4), **members)
    writer.write(folder / "drift.safetensors")
    opd("replay", folder / "drift.safetensors", "--out", folder / "equal")
    for path in ("rtl", "cpu"):
        opd("replay", folder / "drift.safetensors", "--out", folder / path, "--plant-fault", path, expect=1)
    opd("replay", folder / "drift.safetensors", "--out", folder / "state", "--compare-state", "--plant-fault", "state-rtl", expect=1)
    opd("replay", folder / "drift.safetensors", "--out", folder / "policy", "--policy", ROOT / "sw_reference/python/opd/policy/static_headroom.py")
    attention(folder / "attention.safetensors")
    opd("replay", folder / "attention.safetensors", "--compute", "--out", folder / "computed")
    return [json.loads((folder / name / "summary.json").read_text()) for name in ("equal", "rtl", "cpu", "state", "policy", "computed")]


@needs_program
def test_every_key_of_the_summary_is_documented_and_every_documented_key_is_there(summaries):
    assert wrong_keys(documented_keys(SUMMARY_KEYS), summaries) == []


@needs_program
@pytest.mark.parametrize("old, new, told", [
    ("`sideband_wait_cycles`, ", "", "traces[].reaction_and_overhead[].sideband_wait_cycles: not documented"),
    ("`microseconds_per_step`", "`microseconds_per_step`, `reread`", "traces[].reaction_and_overhead[].reread: documented, and in no file"),
    ("| `traces[].host.hints[].factors` |", "| `traces[].factors` |", "traces[].host.hints[].factors: an object that no row describes"),
    ("| `config` | `<field>` |", "| `config` | `jump_threshold` |", "config.z_threshold: not documented"),
])
def test_a_key_of_the_summary_that_only_one_has_is_found(summaries, old, new, told):
    assert old in SUMMARY_KEYS
    assert told in wrong_keys(documented_keys(SUMMARY_KEYS.replace(old, new, 1)), summaries)


def unknown_names(text: str, known: set[str]) -> set[str]:
    """Quoted names of the form of a key that are none."""
    return {name for name in quoted(text) if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+", name)} - known


@needs_program
def test_metrics_names_keys_of_the_summary(summaries):
    known = {key for content in summaries for _, keys in objects_of(content) for key in keys}
    known |= {"first_bad_op", "opd_top"}  # a key of the trace, a module
    assert unknown_names(METRICS, known) == set()
    gone = "reread_energy_nanojoule_per_operator"
    assert unknown_names(f"{METRICS} `{gone}` ", known) == {gone}


@needs_program
def test_the_reaction_that_pages_name_is_what_a_replay_counts(summaries):
    tables = script("measured_tables")
    rtl = summaries[0]["traces"][0]["reaction_and_overhead"][0]
    assert rtl["path"] == "rtl" and rtl["reaction"]["cycles"]["maximum"] == tables.REACTION[tables.BOTH]
    tests = (ROOT / "testbench/tests/system/crosscheck_test.cpp").read_text()  # replay has no device of one engine
    assert tables.REACTION[tables.FORECAST] == 4 and "TheForecastEngineAloneDecidesFourCyclesAfterTheLastBeat" in tests


# --- keys by name: evaluation.json, calibrations ---------------------------------------------------------------------------------

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
    places = [cell for row in cells(text) for cell in row[:2]] + [text.partition("|")[0]]
    told = {part.removesuffix("[]") for place in places for name in quoted(place) for part in name.split(".")}
    told = {name for name in told if re.fullmatch(r"[a-z][a-z0-9_]*", name)}
    keys = key_names(content)
    intervals = {f"{name.removesuffix('_per_1000')}_interval" for name in told} if "`_interval`" in text else set()
    return ([f"{name}: not documented" for name in sorted(keys - told - intervals)] +
            [f"{name}: documented, and not there" for name in sorted(told - keys)])


@pytest.fixture(scope="module")
def evaluation() -> dict:
    """Of the smallest run of each class in each split, so that every figure has something to be computed from."""
    from opd.evaluate.command import evaluate

    labels = tomllib.loads((ROOT / "traces/corpus/labels.toml").read_text(encoding="utf-8"))["runs"]
    smallest: dict[tuple[str, str], Path] = {}
    for name, label in labels.items():
        file = ROOT / f"traces/corpus/{name}.safetensors"
        before = smallest.setdefault((label["class"], label["split"]), file)
        if file.stat().st_size < before.stat().st_size:
            smallest[label["class"], label["split"]] = file
    return evaluate(sorted(map(str, smallest.values())))


@needs_reference
def test_every_key_of_the_evaluation_is_documented_and_every_documented_key_is_there(evaluation):
    assert wrong_names(EVALUATION_KEYS, evaluation) == []


@needs_reference
@pytest.mark.parametrize("new, told", [("", "state_bits: not documented"), ("`state_bits`, `state_bytes`, ", "state_bytes: documented, and not there")])
def test_a_key_of_the_evaluation_that_only_one_has_is_found(evaluation, new, told):
    assert told in wrong_names(EVALUATION_KEYS.replace("`state_bits`, ", new, 1), evaluation)


@needs_reference
def test_goals_name_keys_of_the_evaluation(evaluation):
    paths = [row[2] for row in cells(section(EVALUATION, "Goals"))]
    assert len(paths) >= 5
    for path in (name for cell in paths for name in quoted(cell)):
        value = evaluation["detectors"][0]
        for key in path.split("."):
            assert key in value, path
            value = value[key]


@needs_reference
def test_every_key_of_a_calibration_is_documented_and_every_documented_key_is_there(tmp_path, capsys):
    from opd.calibrate.command import main

    labels = tomllib.loads((ROOT / "traces/corpus/labels.toml").read_text(encoding="utf-8"))["runs"]
    healthy = [ROOT / f"traces/corpus/{name}.safetensors" for name, label in labels.items() if label["class"] == "healthy"]
    smallest = min(healthy, key=lambda file: file.stat().st_size)
    traces = [*(ROOT / f"traces/captured/{name}.safetensors" for name in ("healthy", "near_limit")), smallest]
    assert main([*map(str, traces), "--out", str(tmp_path / "device.json")]) in (0, 3)
    content = json.loads((tmp_path / "device.json").read_text())["calibration"]
    assert wrong_names(CALIBRATION_KEYS, content) == []
    assert "replay_alarms: not documented" in wrong_names(CALIBRATION_KEYS.replace("`replay_alarms`", ""), content)


# --- records and registers ---------------------------------------------------------------------------------------------------------

def test_the_record_of_the_page_is_the_record():
    sizes = {"u8": "u1", "u16": "<u2", "u32": "<u4"}
    told = [(int(row[0]), np.dtype(sizes[row[1]]), row[2]) for row in cells(section(FORMATS, "OpRecord"))]
    assert told == [(offset, dtype, name) for name, (dtype, offset) in RECORD.fields.items()]
    header = (ROOT / "sw_reference/include/opd/types/record.hpp").read_text()
    body = re.search(r"struct OpRecord \{(.*?)\n\};", header, re.DOTALL)[1]
    assert re.findall(r"^\s+[\w:]+ (\w+)(?:\{|;| =)", body, re.MULTILINE) == [name for _, _, name in told]


def test_labels_kinds_and_formats_of_a_trace_are_those_of_the_page():
    rows = {quoted(row[0])[0]: row[1] for row in cells(section(FORMATS, "Trace"))}
    assert quoted(rows["label"]) == list(LABELS)
    names = quoted(rows["probes"])
    assert [name for name in names if name in KINDS] == list(KINDS) and [name for name in names if name in ELEMENTS] == list(ELEMENTS)
    classes = [name for row in cells(section(EVALUATION, "Labels")) for name in row[0].split(", ")]
    assert sorted(classes) == sorted(LABELS)


def test_kernels_and_fields_of_an_operator_are_those_of_the_pages():
    told = {}
    for row in cells(section(VECTOR_UNIT, "Programs")):
        operands = row[2].split(", ")
        attribute, _, default = row[3].partition(" ")
        for name in quoted(row[0]):
            told[name] = (row[1].replace("element-wise", "elementwise").replace(" ", "_"), tuple(o.strip("[]") for o in operands),
                          sum("[" not in o for o in operands), attribute.strip("`") or None, float(default or 0))
    assert told == {name: tuple(kernel) for name, kernel in KERNELS.items()}
    page = section(FORMATS, "Trace").split("### Operators and operands\n")[1].split("\n### ")[0]
    fields = [name for row in cells(page) for name in quoted(row[0])]
    attributes = {kernel.attribute for kernel in KERNELS.values()} - {None}
    assert set(fields) == {"probe", "kernel", "rows", "columns", "batch", "depth", "operands"} | attributes


def registers() -> set[str]:
    """REGISTER.FIELD of docs/registers.md, which is generated from the map."""
    return {f"{row[1]}.{row[2]}" for row in cells(REGISTERS) if row[0].startswith("0x")}


def unknown_registers(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Z][A-Z0-9_]{2,}\.[A-Z][A-Z0-9_]+\b", text)) - registers()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_registers_that_a_page_names_exist(page):
    assert len(registers()) > 80
    assert unknown_registers(page.read_text(encoding="utf-8")) == set()


def test_a_register_that_does_not_exist_is_found():
    assert unknown_registers("RISK.STABLE, then RISK.UNSTABLE") == {"RISK.UNSTABLE"}


FIELD = re.compile(r"(?:forecast|jump|critical|baseline|published|desensitise|z|d2|hint|limit|risk|quiet|safe|weight)_\w+")


@pytest.mark.parametrize("page", ["numerics", "calibration", "controller"])
def test_fields_of_the_configuration_that_a_page_names_exist(page):
    fields = {name for name in quoted((ROOT / f"docs/{page}.md").read_text(encoding="utf-8")) if FIELD.fullmatch(name)}
    assert fields and fields - set(CONFIG_RESET) == set()


# --- options, variables, commands ----------------------------------------------------------------------------------------------------

PROGRAMS = [file for folder in ("testbench", "sw_reference/python", "scripts", "traces/training") for file in (ROOT / folder).rglob("*")
            if file.is_file() and "tests" not in file.relative_to(ROOT).parts
            and (file.suffix in (".cpp", ".hpp", ".py") or file.parent.name == "scripts")]
TESTS = [file for file in (ROOT / "testbench/tests").rglob("*") if file.suffix in (".py", ".cpp", ".hpp") and file != Path(__file__).resolve()]
BUILD_FILES = [ROOT / "CMakeLists.txt", *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("*/*/CMakeLists.txt")]
OTHERS_OPTIONS = {"--lr"}  # of a user's own script, in an example


def text_of(files: list[Path]) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def unknown_options(text: str) -> set[str]:
    """Options that no program has."""
    programs = text_of(PROGRAMS)
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))) - OTHERS_OPTIONS
    return {option for option in found if not re.search(rf"(?<![\w-]){option}(?![\w-])", programs)}


def unknown_variables(text: str) -> set[str]:
    """Variables of the environment and of CMake that no source reads."""
    return set(re.findall(r"\bOPD_[A-Z_]+\b", text)) - set(re.findall(r"\bOPD_[A-Z_]+\b", text_of([*PROGRAMS, *TESTS, *BUILD_FILES])))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_and_variables_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    assert unknown_options(text) == set() and unknown_variables(text) == set()


def test_options_and_variables_that_do_not_exist_are_found():
    assert unknown_options("`opd replay --out DIR --fast-forward`") == {"--fast-forward"}
    assert unknown_variables("`OPD_SOAK=full` and `OPD_SOUP=hot`") == {"OPD_SOUP"}


@needs_program
def test_commands_that_pages_show_exist():
    told = set(re.findall(r"(?:build/opd|python -m opd) ([a-z]\w*)", text_of(PAGES)))
    listed = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert told >= {"replay", "info", "bench", "capture", "import", "evaluate", "calibrate"}
    assert {name for name in told if not re.search(rf"^\s+{name}\b", listed, re.MULTILINE)} == set()


# --- files and links -------------------------------------------------------------------------------------------------------------------

MADE = ("out/", "build/", "/opd/", "../shared/")  # by the programs; types of reports; what is not part of the repository
SEARCHED = ("", "sw_reference/include", "sw_reference/python", "sw_reference", "rtl", "traces", "traces/training")


def missing_files(page: Path, text: str) -> set[str]:
    """Files and folders that a page quotes by path and that are not there, nor below the page or a folder that pages leave out. A path
    whose first part is nowhere is one of somebody else, or none."""
    roots = [page.parent, *(ROOT / folder for folder in SEARCHED)]
    found = {name for name in quoted(text) if re.fullmatch(r"[\w./-]+/[\w./-]*", name) and not name.startswith(MADE)}
    own = {name for name in found if any((root / name.split("/")[0]).exists() for root in roots)}
    return {name for name in own if not any((root / name).exists() for root in roots)}


def anchors(page: Path) -> set[str]:
    words = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", words, re.MULTILINE)}


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
def test_files_and_links_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    assert missing_files(page, text) == set() and broken_links(page, text) == []


def test_files_and_links_that_lead_nowhere_are_found():
    page = ROOT / "README.md"
    text = "`docs/gone.md` beside `docs/metrics.md`, `opd/types/gone.hpp`, and `zclip/zclip.py` of another project"
    assert missing_files(page, text) == {"docs/gone.md", "opd/types/gone.hpp"}
    links = "[a](docs/gone.md) [b](docs/metrics.md#gone) [c](docs/metrics.md#overhead) [d](#gone) [e](https://x.org)"
    assert broken_links(page, links) == ["docs/gone.md", "docs/metrics.md#gone", "#gone"]
