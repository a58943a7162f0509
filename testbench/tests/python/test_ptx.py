"""The translator of PTX for the emulated CUDA device: what it refuses, and that every instruction it knows has a case.

Testplan: GPU-02
"""
import re
import sys
from pathlib import Path

import pytest

TESTBENCH = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTBENCH / "ptx"), str(TESTBENCH / "tests" / "ptx")]
import instruction_cases  # noqa: E402
import translate  # noqa: E402

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(
\t.param .u64 k_out,
\t.param .align 8 .b8 k_block[24]
)
{
\t.reg .pred %p<4>;
\t.reg .b16 %rs<4>;
\t.reg .b32 %r<4>;
\t.reg .b64 %rd<4>;
"""
FIRST = HEAD.count("\n") + 1  # line of the first statement


def text_of(*statements: str) -> str:
    return HEAD + "".join(f"\t{statement}\n" for statement in statements) + "\tret;\n}\n"


def code_of(*statements: str) -> str:
    return translate.translate(text_of(*statements), "k.ptx")


def test_every_instruction_has_a_case() -> None:
    cases = {kernel.instruction for kernel in instruction_cases.kernels() if kernel.cases}
    assert set(translate.FORMS) <= cases
    written = (TESTBENCH / "tests" / "ptx" / "device_kernels.ptx").read_text(encoding="utf-8")
    executed = cases | set(re.findall(r"^\s*(?:@!?%p\d+ )?([a-z][a-z0-9_.]+)\b", written, re.MULTILINE))
    assert translate.KNOWN - executed == set()


def test_cases_use_every_bit_of_a_result() -> None:
    """A case that gives zeros everywhere would pass whatever ran."""
    for kernel in instruction_cases.kernels():
        if kernel.instruction.startswith(("redux", "vote", "mov.u32")):
            continue
        assert any(any(expected) for _, expected in kernel.cases), kernel.instruction


@pytest.mark.parametrize(("statement", "what"), [
    ("fma.rz.f32 %r1, %r2, %r3, %r1;", "the instruction fma.rz.f32"),
    ("div.approx.f32 %r1, %r2, %r3;", "the instruction div.approx.f32"),
    ("sqrt.rn.ftz.f32 %r1, %r2;", "the instruction sqrt.rn.ftz.f32"),
    ("add.rn.f64 %r1, %r2, %r3;", "%r2 has 32 bits, not 64"),
    ("mov.f64 %rd1, 0f3F800000;", "the operand '0f3F800000' as f64"),
    ("add.rn.ftz.f32 %r1, %r2, %r3;", "the instruction add.rn.ftz.f32"),
    ("add.rz.f32 %r1, %r2, %r3;", "the instruction add.rz.f32"),
    ("add.sat.s32 %r1, %r2, %r3;", "the instruction add.sat.s32"),
    ("setp.lt.and.s32 %p1, %r1, %r2, %p2;", "the instruction setp.lt.and.s32"),
    ("atom.global.add.u32 %r1, [%rd1], 1;", "the instruction atom.global.add.u32"),
    ("ld.volatile.global.u32 %r1, [%rd1];", "the instruction ld.volatile.global.u32"),
    ("ld.const.u32 %r1, [%rd1];", "the instruction ld.const.u32"),
    ("ld.local.u32 %r1, [%rd1];", "local memory that is not declared"),
    ("cvta.local.u64 %rd1, %rd2;", "the instruction cvta.local.u64"),
    ("cvta.shared.u64 %rd1, %rd2;", "the instruction cvta.shared.u64"),
    ("call.uni f;", "the instruction call.uni"),
    ("bar.sync 1;", "the barrier 1"),
    ("bar.sync 0, 64;", "2 operands for 1"),
    ("add.s32 %r1, %r2;", "2 operands for 3"),
    ("add.s32 %r1, %rd2, %r3;", "%rd2 has 64 bits, not 32"),
    ("add.s32 %rs1, %r2, %r3;", "%rs1 has 16 bits, not 32"),
    ("add.s32 %q1, %r2, %r3;", "the operand '%q1'"),
    ("add.s32 %r1, %r2, variable;", "the operand 'variable'"),
    ("add.s32 %r1, %r2, 4294967296;", "does not fit s32"),
    ("mov.u32 %r1, %clock;", "the operand '%clock'"),
    ("mov.u32 %r1, %tid.y;", "the operand '%tid.y'"),
    ("shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;", "the operand '%r1|%p1'"),
    ("vote.sync.any.pred %p1, !%p2, -1;", "the operand '!%p2'"),
    ("ld.global.v2.u32 %r1, [%rd1];", "1 registers for 2"),
    ("ld.global.u32 %r1, [%r2];", "%r2 has 32 bits, not 64"),
    ("ld.shared.u32 %r1, [%rd2];", "%rd2 has 64 bits, not 32"),
    ("ld.global.u64 %r1, [%rd2];", "%r1 has 32 bits, not 64"),
    ("st.global.u64 [%rd2], %r1;", "%r1 has 32 bits, not 64"),
    ("ld.param.u32 %r1, [k_none];", "the parameter 'k_none'"),
    ("ld.param.u64 %rd1, [k_block+24];", "an access outside the parameter 'k_block'"),
    ("bra %rd1;", "the label '%rd1'"),
    ("ADD %r1;", "the instruction 'ADD %r1'"),
    (".local .align 32 .b8 depot[4];", "an alignment above 16"),
    (".local .u32 depot;", "the directive"),
    (".pragma \"other\";", "the directive"),
    (".reg .f16 %h<3>;", "registers of type f16"),
    ("add.s32 %r1, %r2, %r3", "a statement that does not end"),
])
def test_what_is_not_known_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                     statement: str, what: str) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(text_of("mov.u32 %r1, 0;", statement), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["translate.py", str(source), str(tmp_path / "k.cpp")])
    assert translate.main() == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{source}:{FIRST + 1}: not emulated: ")
    assert what in message
    assert not (tmp_path / "k.cpp").exists()


@pytest.mark.parametrize(("line", "what"), [
    (".func f() {", "the directive '.func f() {'"),
    (".entry k(\n.param .u64 .ptr x\n)\n{\nret;\n}", "the parameter '.param .u64 .ptr x'"),
    (".entry k(\n)\n.reqnctapercluster 2\n{\nret;\n}", "the kernel's attribute '.reqnctapercluster'"),
    (".entry k(\n)\n{\nret;", "a kernel that does not end"),
    (".extern .shared .align 128 .b8 words[];", "an alignment of 128"),
])
def test_what_surrounds_a_kernel_is_refused_too(line: str, what: str) -> None:
    with pytest.raises(translate.Refused) as refused:
        translate.translate(line + "\n", "k.ptx")
    assert what in str(refused.value)


def test_statements_become_code() -> None:
    code = code_of("@!%p1 bra $L_end;", "ld.param.u64 %rd1, [k_out];", "$L_end:", ".pragma \"used_bytes_mask 15\";", "ld.global.v2.u32 {%r1, %r2}, [%rd1+-8];")
    assert "if (!p1) { goto L_end; }" in code
    assert f"load<Space::kGlobal, std::uint32_t, 2>(t, rd1 + std::uint64_t(-8), 15u, false, {FIRST + 4})" in code
    assert '{"k", "k.ptx", kernel_0, {{0, 8}, {8, 24}}, 32, 0, 1024, false, 80}' in code
    assert "kernel_0, {{0, 8}, {8, 24}}, 32, 0, 1024, true, 80}" in code_of("nanosleep.u32 %r1;")


def fault(replace: str, **more: object) -> list[translate.Fault]:
    row = {"name": "f", "kernel": re.compile("k"), "find": re.compile(r"^add\.s32"), "replace": replace, "occurrence": None, "number": 3, **more}
    return [translate.Fault(**row)]


def test_faults_are_planted_behind_their_switch() -> None:
    text = text_of("add.s32 %r1, %r2, %r3;", "add.s32 %r1, %r2, %r3;")
    assert translate.translate(text, "k.ptx", fault("sub.s32")).count("if (mutant() == 3) { r1 = static_cast<std::uint32_t>(sub<") == 2
    assert translate.translate(text, "k.ptx", fault("sub.s32", occurrence=1)).count("mutant() == 3") == 1
    for faults, what in ((fault("sub.s32", occurrence=2), "no statement"), (fault("sub.s32", kernel=re.compile("other")), "no statement"),
                         (fault("add.s32"), "leaves"), (fault("fma.s32"), "the instruction fma.s32")):
        with pytest.raises(translate.Refused, match=what):
            translate.translate(text, "k.ptx", faults)
