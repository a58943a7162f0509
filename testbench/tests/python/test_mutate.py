"""scripts/mutate: mutators of every language, private copies, verdicts, equivalents, options, and a sample of this repository's mutants.

Testplan: MUT-01.
"""
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MUTATE = ROOT / "scripts" / "mutate"
sys.path.insert(0, str(ROOT / "testbench"))

from mutation import brackets_source, plan, python_source, tokens, workshop  # noqa: E402
from mutation.mutant import Mutant  # noqa: E402


def told(found: list[Mutant]) -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in found}


def verilog(source: str) -> set[tuple[str, str]]:
    return told(brackets_source.mutants_of("m.sv", source, tokens.VERILOG))


def cpp(source: str) -> set[tuple[str, str]]:
    return told(brackets_source.mutants_of("m.cpp", source, tokens.CPP))


def python(source: str) -> set[tuple[str, str]]:
    return told(python_source.mutants_of("m.py", source))


def test_comments_strings_and_directives_stay():
    assert cpp('#include "a<b>.hpp"\n#define N 1 + 1\n// a == b\n/* 1 + 1 */ const char* s = "a && b 1"; auto r = R"x(1 + 1)x"; char c = \'1\';') == set()
    assert verilog('`include "a.svh"\n// a == 1\n/* 1 + 1 */ `OPD_ASSERT(A_A, a == b, c + 1)\n') == set()
    assert python('"""a == 1"""\nNAME = "x"\n') == {('NAME = "x"', "pass")}


@pytest.mark.parametrize("before, after", sorted(brackets_source.SWAPPED.items()))
def test_every_operator_is_swapped_in_cpp_or_verilog(before, after):
    if before in ("++", "--"):
        assert (before, after) in cpp(f"int f() {{ return i{before}; }}")
    elif before.endswith("=") and before not in ("==", "!=", "<=", ">="):
        assert (before, after) in cpp(f"void f() {{ a {before} b; }}")
    elif before in ("<<<", ">>>"):
        assert (before, after) in verilog(f"assign a = b {before} c;")
    else:
        assert (before, after) in cpp(f"int f() {{ return a {before} b; }}") & verilog(f"assign x = a {before} b;")


def test_what_only_looks_like_an_operator_stays_in_cpp():
    source = "std::vector<int> f(const T& a, T&& b, int* c) { return g<T>(*c, &a, std::move(b)); }"
    assert cpp(source) == set()
    assert cpp("bool operator==(const T&) const = default;") == set()


def test_a_nonblocking_assignment_is_no_comparison():
    found = verilog("always_ff @(posedge clk_i or negedge rst_ni) begin\n  if (!rst_ni) a_q <= '0;\n  else if (x <= y) a_q <= b;\nend")
    assert ("<=", "<") in found  # of x and y
    assert sum(1 for m in brackets_source.mutants_of("m", "begin a <= b; {c, d} <= e; f[1].g <= h; end", tokens.VERILOG)
               if m.operator == "operator swapped") == 0
    assert {("a_q <= b;", ";"), ("a_q <= '0;", ";"), ("(!rst_ni)", "(1'b0)"), ("or negedge rst_ni", ""), ("'0", "'1"),
            ("(x <= y)", "(!(x <= y))")} <= found


def test_verilog_numbers_stay_within_their_width_and_widths_stay():
    assert [brackets_source.one_more(text, tokens.VERILOG) for text in ("1'b1", "8'hFF", "10'sd3", "7", "'0", "'1", "4'b1x")] \
        == ["1'b0", "8'h0", "10'sd4", "8", "'1", "'0", None]
    assert verilog("logic [31:0] a;\nlogic signed [7:0][3:0] b;") == set()
    assert verilog("assign a = 32'(b);") == {("assign a = 32'(b);", "")}
    assert ("30", "31") in verilog("assign a = b[30:23];")


def test_cpp_numbers():
    assert [brackets_source.one_more(text, tokens.CPP) for text in ("0", "9u", "0xFFull", "0b11", "1'000", "1.5", "2.0f", "1e-3")] \
        == ["1", "10u", "0x100ull", "0b100", "1001", "2.5", "3.0f", None]


def test_choices_are_swapped_as_a_whole():
    assert ("b : c ? d : e", "(c ? d : e) : (b)") in cpp("int f() { return a ? b : c ? d : e; }")
    assert ("f(x, y) : z", "(z) : (f(x, y))") in verilog("assign q = a ? f(x, y) : z;")


def test_statements_are_deleted_and_declarations_stay():
    found = cpp("void f() { int a = b; a = c; g(a).h(); ++i; if (x) return; for (;;) { break; } A b(c); }")
    assert {("a = c;", ";"), ("g(a).h();", ";"), ("++i;", ";"), ("break;", ";"), ("(x)", "(!(x))")} <= found
    assert not {before for before, _ in found} & {"int a = b;", "A b(c);", "return;"}
    found = verilog("always_comb begin unique case (s) A: x = 1'b0; default: x = y ? z : w; endcase end")
    assert {("x = 1'b0;", ";"), ("x = y ? z : w;", ";")} <= found


def test_python_operators_conditions_and_statements():
    found = python("def f(a, b: int = 3) -> int:\n    if a < b and not a:\n        a += 1\n    while a is not None:\n        break\n"
                   "    g(a)\n    return [x if a else y for x in b if x not in a], (a) - (b), True, -a\n")
    assert {("<", "<="), ("and", "or"), ("not ", ""), ("+=", "-="), ("is not", "is"), ("not in", "in"), ("-", "+"), ("True", "False"), ("-", ""),
            ("a < b and not a", "(not (a < b and not a))"), ("break", "pass"), ("g(a)", "pass"), ("a += 1", "pass"), ("x if a else y", "(y) if a else (x)"),
            ("3", "4"), ("x not in a", "(not (x not in a))")} <= found


def test_python_places_behind_letters_of_several_bytes():
    source = 'a = "é" + b\n'
    [mutant] = [m for m in python_source.mutants_of("m.py", source) if m.operator == "operator swapped"]
    assert mutant.applied(source) == 'a = "é" - b\n' and mutant.column == 9


def test_equal_bytecode_is_seen_through_lines_and_brackets():
    assert python_source.same_bytecode("a = 1 + 1\n", "\n\na = (2)\n")
    assert not python_source.same_bytecode("def f():\n    return 1\n", "def f():\n    return 2\n")


def test_mutants_of_every_source_of_the_plan_apply():
    real = plan.read(ROOT / "testbench" / "mutation.toml")
    for component in real.components.values():
        found = plan.mutants(ROOT, component)
        assert len(found) > 10 and len({(m.file, m.start, m.end, m.after) for m in found}) == len(found)
        assert plan.mutants(ROOT, component) == found  # the same every time
        for file in {m.file for m in found}:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert all(m.applied(source) != source and m.text in source for m in found if m.file == file)


def test_a_mutant_of_another_source_is_refused():
    [mutant] = [m for m in python_source.mutants_of("m.py", "a = b + c\n") if m.before == "+"]
    with pytest.raises(ValueError, match="is not the file"):
        mutant.applied("a = b - c\n")


# --- the script, in a repository of its own ---------------------------------------------------------------------------------

PLAN = """
[component.small]
what = "a sum"
sources = ["code.py"]
needs = ["check.py"]
tests = [["{python}", "check.py"]]
seconds = 5
"""


@pytest.fixture
def mutate(tmp_path):
    root = tmp_path / "repository"
    for folder in ("scripts", "testbench/mutation", "sw_reference/python/opd"):
        (root / folder).mkdir(parents=True)
    for file in ("mutate", "environment.py", "measurement.py"):
        shutil.copy(ROOT / "scripts" / file, root / "scripts" / file)
    for file in (ROOT / "testbench" / "mutation").glob("*.py"):
        shutil.copy(file, root / "testbench" / "mutation")
    for file in ("__init__.py", "arguments.py", "texts.py"):
        shutil.copy(ROOT / "sw_reference" / "python" / "opd" / file, root / "sw_reference" / "python" / "opd")
    (root / "code.py").write_text("def more(a, b):\n    return a + b\n\n\ndef least(a):\n    return a if a < 3 else 3\n")
    (root / "check.py").write_text("import importlib\nc = importlib.import_module('code')\n"
                                   "assert c.more(2, 3) == 5\nassert c.least(2) == 2 and c.least(9) == 3\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(*arguments, text=PLAN, start=subprocess.run, **options):
        (root / "testbench" / "mutation.toml").write_text(text.replace("{python}", sys.executable))
        return start([sys.executable, root / "scripts" / "mutate", "--log", tmp_path / "log.jsonl", *arguments], text=True, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(scratch)}, **options)
    run.root, run.scratch, run.log = root, scratch, tmp_path / "log.jsonl"
    return run


def test_verdicts_survivors_and_going_on(mutate):
    before = (mutate.root / "code.py").read_text()
    first = mutate()
    assert first.returncode == 1, first.stderr
    # a + b is found, a < 3 is not told from a <= 3
    assert "SURVIVED small: code.py:6:19 operator swapped: < -> <=" in first.stdout and "killed     code.py:2:14 operator swapped: + -> -" in first.stdout
    assert (mutate.root / "code.py").read_text() == before and not list(mutate.scratch.iterdir())
    verdicts = len(mutate.log.read_text().splitlines())
    second = mutate()
    assert second.returncode == 1 and "min left" not in second.stdout and len(mutate.log.read_text().splitlines()) == verdicts
    (mutate.root / "check.py").write_text((mutate.root / "check.py").read_text() + "# another test\n")
    assert "min left" in mutate("--sample", "1").stdout


def test_a_listed_equivalent_does_not_count_and_a_stale_one_is_an_error(mutate):
    entry = '\n[[equivalent]]\nfile = "code.py"\ntext = "return a if a < 3 else 3"\nmutants = ["< -> <="]\nreason = "3 either way"\n'
    result = mutate(text=PLAN + entry)
    assert "operator swapped: < -> <=" not in result.stdout and " 1 " in result.stdout
    result = mutate(text=PLAN + entry.replace("a < 3", "a < 4"))
    assert result.returncode == 2 and "equivalent 1 (code.py: return a if a < 4 else 3): fits no mutant" in result.stderr
    result = mutate("--check", text=PLAN + entry.replace("< -> <=", "> -> >="))
    assert result.returncode == 2 and "fits no mutant: > -> >=; the source has changed" in result.stderr
    result = mutate(text=PLAN + entry.replace("3 either way", " "))
    assert result.returncode == 2 and "reason: empty" in result.stderr


def test_a_test_that_hangs_is_ended_and_said_apart(mutate):
    (mutate.root / "code.py").write_text("def down(a):\n    while a > 0:\n        a -= 1\n    return a\n")
    (mutate.root / "check.py").write_text("import importlib\nassert importlib.import_module('code').down(2) == 0\n")
    result = mutate(text=PLAN.replace("seconds = 5", "seconds = 1"))
    assert "timeout    code.py:3:11 operator swapped: -= -> +=" in result.stdout, result.stderr


def test_sources_that_do_not_pass_are_an_error(mutate):
    (mutate.root / "check.py").write_text("assert False\n")
    result = mutate()
    assert result.returncode == 2 and "component.small: the sources as they are do not pass" in result.stderr and not list(mutate.scratch.iterdir())


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(mutate, name):
    (mutate.root / "check.py").write_text("import time\ntime.sleep(0.7)\n")
    process = mutate(start=subprocess.Popen)
    until = time.monotonic() + 20
    while not list(mutate.scratch.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(name)
    process.communicate(timeout=30)
    assert process.returncode not in (0, 1)
    assert "a + b" in (mutate.root / "code.py").read_text()
    left = list(mutate.scratch.glob(workshop.PREFIX + "*"))
    if name == signal.SIGKILL:  # cannot be caught; the next run takes it away
        for folder in left:
            os.utime(folder, (time.time() - 2 * workshop.YOUNG,) * 2)
        mutate("--sample", "1")
        left = list(mutate.scratch.glob(workshop.PREFIX + "*"))
    assert left == []


@pytest.mark.parametrize("arguments, words", [
    (["--component", "nothing"], "--component nothing: no such component"), (["--sample", "0"], "--sample 0: give at least 1"),
    (["--jobs", "0"], "--jobs 0: give at least 1"), (["--save", "--list"], "--save: writes the table of whole components"),
    (["--file", "other"], "--file other: in the path of no file"), (["--sampel", "3"], "--sampel")])
def test_bad_options_are_named(mutate, arguments, words):
    result = mutate(*arguments)
    assert result.returncode == 2 and words in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("before, after, words", [
    ("seconds = 5", "", "component.small: seconds: missing"), ("seconds = 5", "second = 5", "unknown key 'second'"),
    ('["code.py"]', '["cod.py"]', "cod.py: fits no file"), ("seconds = 5", 'seconds = "5"', "seconds: of another type"),
    ('["code.py"]', '["testbench/mutation.toml"]', "no mutator for .toml"), ("[component.small]", "[other.small]", "unknown key 'other'")])
def test_a_bad_plan_is_named(mutate, before, after, words):
    result = mutate(text=PLAN.replace(before, after))
    assert result.returncode == 2 and words in result.stderr and "Traceback" not in result.stderr


def test_a_damaged_log_is_named(mutate):
    mutate.log.write_text('{"key": "a"}\n')
    result = mutate()
    assert result.returncode == 2 and "log.jsonl: line 1: no verdict" in result.stderr


def test_the_draw_depends_on_the_seed_alone(mutate):
    draws = [mutate("--list", "--sample", "3", "--seed", seed).stdout for seed in ("1", "1", "2", "3", "4")]
    assert draws[0] == draws[1] and len(set(draws)) > 1 and all(len(draw.splitlines()) == 3 for draw in draws)


# --- this repository ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("component, file, before, after", [
    ("driver", "training.cpp", "/", "*"), ("rtl_float", "opd_fp32_greater.sv", "&&", "||")])
def test_a_mutant_of_this_repository_is_killed(component, file, before, after):
    for tool in ("verilator", "g++", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    part = plan.read(ROOT / "testbench" / "mutation.toml").components[component]
    mutant = next(m for m in plan.mutants(ROOT, part) if m.file.endswith(file) and (m.before, m.after) == (before, after))
    with workshop.Workshop(ROOT, part) as shop:
        shop.baseline()
        verdict = shop.judge(mutant)
        assert verdict.status == workshop.KILLED, verdict
        assert (shop.copy / mutant.file).read_text() == (ROOT / mutant.file).read_text()


def test_the_equivalents_of_this_repository_fit():
    result = subprocess.run([MUTATE, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "all of which fit" in result.stdout
