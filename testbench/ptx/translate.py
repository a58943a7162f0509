"""PTX, as nvcc writes it, to C++ that ptx/device.hpp executes: one function per kernel, one statement per instruction.

Usage: translate.py INPUT.ptx OUTPUT.cpp [--faults FAULTS.toml]
  --faults   plant the faults of that file, each behind a switch (Execution::mutant, counted from 1 in the order of the file)

It knows the instructions in FORMS, by their whole name with every modifier, and nothing else: any other instruction, operand
or directive is refused with file, line and text, status 2. A register is a variable of unsigned bits, as wide as its .reg
declaration says; what an instruction takes must be as wide as its type, except where PTX lets a register be wider (ld, st, cvt).

source: NVIDIA, PTX ISA 9.0
"""
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64}
CXX_BITS = {1: "bool", 8: "std::uint8_t", 16: "std::uint16_t", 32: "std::uint32_t", 64: "std::uint64_t"}

SPECIAL = {"%tid.x": "t.tid", "%ntid.x": "t.ntid", "%ctaid.x": "t.ctaid", "%nctaid.x": "t.nctaid", "%laneid": "t.lane()",
           "%lanemask_lt": "(1u << t.lane()) - 1", "%lanemask_le": "0xFFFFFFFFu >> (31 - t.lane())",
           "%lanemask_ge": "0xFFFFFFFFu << t.lane()", "%lanemask_gt": "0xFFFFFFFEu << t.lane()"}


def width(kind: str) -> int:
    """Bits of a PTX type."""
    return 1 if kind == "pred" else int(kind[1:])


def cxx(kind: str) -> str:
    """The C++ type of a PTX type."""
    if kind == "pred":
        return "bool"
    if kind in ("f32", "f64"):
        return "float" if kind == "f32" else "double"
    return f"std::{'' if kind[0] == 's' else 'u'}int{kind[1:]}_t"


@dataclass(frozen=True)
class Form:
    """One instruction: the type it gives, the types it takes, the C++ that computes it from {0}, {1}, ..."""
    result: str
    sources: tuple[str, ...]
    code: str
    any_width: bool = False  # the registers may be wider than the types


@dataclass(frozen=True)
class Memory:
    """A load or a store."""
    store: bool
    space: str  # "param", "shared", "local" or "global"; an address without a space is a global one here: no pointer to another is made
    kind: str
    count: int
    strong: bool


def arithmetic() -> dict[str, Form]:
    """Everything that computes from registers alone."""
    forms = {}

    def binary(name: str, kinds: str, function: str, suffix: str = "") -> None:
        for kind in kinds.split():
            forms[f"{name}{suffix}.{kind}"] = Form(kind, (kind, kind), f"{function}<{cxx(kind)}>({{0}}, {{1}})")

    for name in ("add", "sub"):
        binary(name, "s16 s32 s64 u16 u32 u64", name)
    binary("mul", "s16 s32 s64 u16 u32 u64", "mul", ".lo")
    for name in ("add", "sub", "mul"):
        binary(name, "f32 f64", name, ".rn")
    binary("div", "f32 f64", "div", ".rn")
    for kind in ("u32", "u64"):
        for name in ("div", "rem"):
            forms[f"{name}.{kind}"] = Form(kind, (kind, kind), f"{name}<{cxx(kind)}>({{0}}, divisor(t, {{1}}, {{line}}))")
    for kind in ("f32", "f64"):
        forms[f"fma.rn.{kind}"] = Form(kind, (kind,) * 3, f"fma<{cxx(kind)}>({{0}}, {{1}}, {{2}})")
        for name in ("rcp", "sqrt"):
            forms[f"{name}.rn.{kind}"] = Form(kind, (kind,), f"{name}<{cxx(kind)}>({{0}})")
    for name in ("min", "max"):
        binary(name, "s16 s32 s64 u16 u32 u64 f32", name)
    forms["max.u16x2"] = Form("b32", ("b32", "b32"), "max_u16x2({0}, {1})")
    for name in ("and", "or", "xor"):
        binary(name, "pred b16 b32 b64", f"bit_{name}")
    for kind in ("s16", "u16", "s32", "u32"):
        forms[f"mul.wide.{kind}"] = Form(f"{kind[0]}{2 * width(kind)}", (kind, kind), f"mul_wide<{cxx(kind)}>({{0}}, {{1}})")
    for kind in ("s32", "u32", "s64", "u64"):
        forms[f"mad.lo.{kind}"] = Form(kind, (kind,) * 3, f"mad<{cxx(kind)}>({{0}}, {{1}}, {{2}})")
    for kind in ("pred", "b16", "b32", "b64"):
        forms[f"not.{kind}"] = Form(kind, (kind,), f"bit_not<{cxx(kind)}>({{0}})")
    for kind in ("s16", "s32", "s64", "f32", "f64"):
        forms[f"neg.{kind}"] = Form(kind, (kind,), f"neg<{cxx(kind)}>({{0}})")
    for kind in ("b16", "b32", "b64"):
        forms[f"shl.{kind}"] = Form(kind, (kind, "u32"), f"shl<{cxx(kind)}>({{0}}, {{1}})")
    for kind in ("s16", "s32", "s64", "u16", "u32", "u64"):
        forms[f"shr.{kind}"] = Form(kind, (kind, "u32"), f"shr<{cxx(kind)}>({{0}}, {{1}})")
    for kind in ("b32", "b64"):
        forms[f"clz.{kind}"] = Form("u32", (kind,), f"clz<{cxx(kind)}>({{0}})")
        forms[f"brev.{kind}"] = Form(kind, (kind,), f"brev<{cxx(kind)}>({{0}})")
        forms[f"bfi.{kind}"] = Form(kind, (kind, kind, "u32", "u32"), f"bfi<{cxx(kind)}>({{0}}, {{1}}, {{2}}, {{3}})")
    forms["prmt.b32"] = Form("b32", ("b32", "b32", "b32"), "prmt({0}, {1}, {2})")
    for kind in ("b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64", "f32", "f64"):
        compares = ["eq", "ne"]
        if kind[0] != "b":
            compares += ["lt", "le", "gt", "ge"]
        if kind in ("f32", "f64"):
            compares += ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
        for compare in compares:
            forms[f"setp.{compare}.{kind}"] = Form("pred", (kind, kind), f"setp<{cxx(kind)}, Compare::k{compare.capitalize()}>({{0}}, {{1}})")
    for kind in ("b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64", "f32", "f64"):
        forms[f"selp.{kind}"] = Form(kind, (kind, kind, "pred"), f"selp<{CXX_BITS[width(kind)]}>({{0}}, {{1}}, {{2}})")
    integers = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for to in integers:
        for source in integers:
            if to != source:
                forms[f"cvt.{to}.{source}"] = Form(to, (source,), f"cvt<{cxx(to)}, {cxx(source)}>({{0}})", any_width=True)
    forms["cvt.rn.f32.u32"] = Form("f32", ("u32",), "bits_of(static_cast<float>({0}))")
    forms["cvt.rn.f32.s32"] = Form("f32", ("s32",), "bits_of(static_cast<float>(static_cast<std::int32_t>({0})))")
    forms["cvt.rn.f64.u32"] = Form("f64", ("u32",), "bits_of(static_cast<double>({0}))")
    forms["cvt.rn.f32.f64"] = Form("f32", ("f64",), "bits_of(static_cast<float>(value_of<double>({0})))")
    forms["cvt.f64.f32"] = Form("f64", ("f32",), "bits_of(static_cast<double>(value_of<float>({0})))")
    for kind in ("pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"):
        forms[f"mov.{kind}"] = Form(kind, (kind,), "{0}")
    forms["cvta.to.global.u64"] = Form("u64", ("u64",), "{0}")
    return forms


def warp_operations() -> dict[str, Form]:
    """Shuffles, votes and reductions; the last operand is the mask of lanes."""
    forms = {}
    for mode, operation in {"up": "kUp", "down": "kDown", "bfly": "kButterfly", "idx": "kIndex"}.items():
        forms[f"shfl.sync.{mode}.b32"] = Form("b32", ("b32", "b32", "b32", "b32"), f"warp(t, WarpOperation::{operation}, {{0}}, {{1}}, {{2}}, {{3}}, {{line}})")
    for operation in ("add", "min", "max"):
        for kind in ("u32", "s32"):
            signed = "Signed" if kind == "s32" and operation != "add" else ""
            forms[f"redux.sync.{operation}.{kind}"] = Form(kind, (kind, "b32"), f"warp(t, WarpOperation::k{operation.capitalize()}{signed}, {{0}}, 0, 0, {{1}}, {{line}})")
    for mode in ("all", "any"):
        forms[f"vote.sync.{mode}.pred"] = Form("pred", ("pred", "b32"), f"warp(t, WarpOperation::k{mode.capitalize()}, {{0}}, 0, 0, {{1}}, {{line}}) != 0")
    forms["vote.sync.ballot.b32"] = Form("b32", ("pred", "b32"), "warp(t, WarpOperation::kBallot, {0}, 0, 0, {1}, {line})")
    return forms


def memory() -> dict[str, Memory]:
    """Loads and stores, by their whole name."""
    kinds = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
    forms = {}

    def add(name: str, space: str, counts: tuple[int, ...], strong: bool = False) -> None:
        for kind in kinds:
            for count in counts:
                if count * width(kind) <= 128:
                    vector = f".v{count}" if count > 1 else ""
                    forms[f"{name}{vector}.{kind}"] = Memory(name.startswith("st"), space, kind, count, strong)

    add("ld.param", "param", (1, 2, 4))
    for store in ("ld", "st"):
        add(store, "global", (1, 2, 4))
        add(f"{store}.global", "global", (1, 2, 4))
        add(f"{store}.shared", "shared", (1, 2, 4))
        add(f"{store}.local", "local", (1, 2, 4))
        add(f"{store}.cg", "global", (1,), strong=True)
    add("ld.global.nc", "global", (1, 2, 4))
    add("ld.relaxed.gpu", "global", (1,), strong=True)
    add("st.release.gpu", "global", (1,), strong=True)
    return forms


CONTROL = ("bra", "bra.uni", "ret", "bar.sync", "bar.warp.sync", "membar.cta", "membar.gl", "nanosleep.u32")
FORMS: dict[str, Form | Memory] = {**arithmetic(), **warp_operations(), **memory()}
KNOWN = frozenset(FORMS) | frozenset(CONTROL)

# Directives that change nothing here. A variable of the module is one of them: an instruction that names it is refused.
IGNORED = re.compile(r'\.(version|address_size|minnctapersm|maxnreg)\b|\.pragma "nounroll";$|(\.visible )?\.global [^;]*;$')


class Refused(Exception):
    """What the translator does not know, at a line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class Kernel:
    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> offset, bytes
    parameter_bytes: int = 0
    max_threads: int = 1024
    shared: dict[str, int] = field(default_factory=dict)  # name -> offset
    static_shared: int = 0
    local: str = ""
    local_bytes: int = 0
    registers: dict[str, int] = field(default_factory=dict)  # prefix -> width
    code: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    waits_for_blocks: bool = False

    def width_of(self, register: str) -> int:
        return self.registers[register.rstrip("0123456789")]


@dataclass
class Fault:
    """A planted fault: the statements of one kernel that match are replaced."""
    name: str
    kernel: re.Pattern[str]
    find: re.Pattern[str]
    replace: str
    occurrence: int | None  # counted from 0; None: all
    number: int
    seen: int = 0
    planted: int = 0


def split_operands(text: str) -> list[str]:
    """At the commas outside braces and brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip()]


class Translator:
    """Reads one PTX file."""

    def __init__(self, text: str, faults: list[Fault]) -> None:
        self.lines = re.sub(r"//[^\n]*", "", text).split("\n")
        self.faults = faults
        self.kernels: list[Kernel] = []
        self.dynamic_shared: list[str] = []
        self.at = 0
        self.target = 80
        self.kernel: Kernel
        self.used_bytes: int | None = None

    def refuse(self, what: str) -> Refused:
        return Refused(self.at, what)

    # ---- the file

    def read(self) -> list[Kernel]:
        header: list[str] | None = None
        inside = False
        for self.at, raw in enumerate(self.lines, 1):
            line = raw.strip()
            if not line:
                continue
            if inside:
                if line == "}":
                    inside = False
                else:
                    self.body(line)
            elif header is not None:
                if line == "{":
                    self.begin(" ".join(header))
                    header, inside = None, True
                else:
                    header.append(line)
            elif re.match(r"(\.visible |\.weak )?\.entry\b", line):
                header = [line]
            elif found := re.fullmatch(r"\.extern \.shared \.align (\d+) \.b8 (\w+)\[\];", line):
                if int(found[1]) > 16:
                    raise self.refuse(f"an alignment of {found[1]} of shared memory")
                self.dynamic_shared.append(found[2])
            elif found := re.fullmatch(r"\.target sm_(\d+)a?", line):
                self.target = int(found[1])
            elif not IGNORED.match(line):
                raise self.refuse(f"the directive {line!r}")
        if inside or header is not None:
            raise self.refuse("a kernel that does not end")
        for fault in self.faults:
            if fault.planted == 0:
                raise self.refuse(f"the fault {fault.name!r}: no statement of a kernel {fault.kernel.pattern!r} matches {fault.find.pattern!r}; correct its entry")
        return self.kernels

    def begin(self, text: str) -> None:
        found = re.fullmatch(r"(?:\.\w+ )?\.entry\s+(\w+)\s*\((.*?)\)\s*(.*)", text)
        if not found:
            raise self.refuse(f"the kernel's head {text[:80]!r}")
        kernel = Kernel(found[1])
        for parameter in split_operands(found[2]):
            block = re.fullmatch(r"\.param \.align (\d+) \.b8 (\w+)\[(\d+)\]", parameter)
            scalar = re.fullmatch(r"\.param \.([usbf]\d+) (\w+)", parameter)
            if block:
                alignment, name, size = int(block[1]), block[2], int(block[3])
            elif scalar:
                name, size = scalar[2], width(scalar[1]) // 8
                alignment = size
            else:
                raise self.refuse(f"the parameter {parameter!r}")
            offset = (kernel.parameter_bytes + alignment - 1) // alignment * alignment
            kernel.parameters[name] = (offset, size)
            kernel.parameter_bytes = offset + size
        attributes = found[3]
        if limit := re.search(r"\.maxntid (\d+)(?:, 1, 1)?(?= |$)", attributes):
            kernel.max_threads = int(limit[1])
            attributes = attributes.replace(limit[0], "")
        for rest in re.findall(r"\.\w+", attributes):
            if not IGNORED.match(rest):
                raise self.refuse(f"the kernel's attribute {rest!r}")
        self.kernel = kernel
        self.kernels.append(kernel)
        self.used_bytes = None

    def body(self, line: str) -> None:
        kernel = self.kernel
        if found := re.fullmatch(r"\.reg \.(\w+)\s+%(?:([a-z]+)<\d+>|(SPL?));", line):
            if found[1] not in WIDTHS:
                raise self.refuse(f"registers of type {found[1]}")
            kernel.registers[found[2] or found[3]] = WIDTHS[found[1]]
        elif found := re.fullmatch(r"\.local \.align (\d+) \.b8\s+(\w+)\[(\d+)\];", line):
            if int(found[1]) > 16 or kernel.local:
                raise self.refuse("local memory of more than one variable or of an alignment above 16")
            kernel.local, kernel.local_bytes = found[2], int(found[3])
        elif found := re.fullmatch(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\];", line):
            alignment = int(found[1])
            kernel.shared[found[2]] = (kernel.static_shared + alignment - 1) // alignment * alignment
            kernel.static_shared = kernel.shared[found[2]] + int(found[3])
        elif found := re.fullmatch(r'\.pragma "used_bytes_mask (\w+)";', line):
            self.used_bytes = int(found[1], 0)
        elif found := re.fullmatch(r"\$(\w+):", line):
            kernel.code.append(f"{found[1]}:;")
        elif line.startswith("."):
            if not IGNORED.match(line):
                raise self.refuse(f"the directive {line!r}")
        else:
            for statement in re.findall(r"[^;]+;?", line):
                if not statement.strip().endswith(";"):
                    raise self.refuse(f"a statement that does not end on its line: {statement.strip()!r}")
                self.statement(re.sub(r"\s+", " ", statement.strip()[:-1]))

    # ---- an instruction

    def statement(self, text: str) -> None:
        code = self.instruction(text)
        for fault in self.faults:
            if not fault.kernel.search(self.kernel.name) or not fault.find.search(text):
                continue
            if fault.occurrence is None or fault.seen == fault.occurrence:
                changed = fault.find.sub(fault.replace, text)
                if changed == text:
                    raise self.refuse(f"the fault {fault.name!r} leaves {text!r} as it is; correct its entry")
                other = self.instruction(changed) if changed else ";"
                code = f"if (mutant() == {fault.number}) {{ {other} }} else {{ {code} }}"
                fault.planted += 1
            fault.seen += 1
        self.kernel.code.append(code)
        self.used_bytes = None

    def instruction(self, text: str) -> str:
        found = re.fullmatch(r"(?:@(!?)%(\w+) )?([a-z][a-z0-9_.]*)(?: (.*))?", text)
        if not found:
            raise self.refuse(f"the instruction {text!r}")
        negated, guard, name, operands = found[1], found[2], found[3], split_operands(found[4] or "")
        if name not in KNOWN:
            raise self.refuse(f"the instruction {name} in {text!r}")
        try:
            form = FORMS.get(name)
            if form is None:
                code = self.control(name, operands)
            elif isinstance(form, Memory):
                code = self.access(form, operands)
            elif name == "mov.b64" and any("{" in operand for operand in operands):
                code = self.pair(operands)
            else:
                code = self.compute(form, operands)
        except ValueError as error:
            raise self.refuse(f"{error} in {text!r}") from None
        if guard:
            code = f"if ({'!' if negated else ''}{self.register('%' + guard, 1)}) {{ {code} }}"
        return code

    def register(self, operand: str, bits: int | None = None, at_least: bool = False) -> str:
        """Its variable. bits: how wide it must be."""
        found = re.fullmatch(r"%(?:([a-z]+)\d+|(SPL?))", operand)
        if not found or (found[1] or found[2]) not in self.kernel.registers:
            raise ValueError(f"the operand {operand!r}")
        size = self.kernel.width_of(operand[1:])
        if bits is not None and (size < bits if at_least else size != bits):
            raise ValueError(f"{operand} has {size} bits, not {bits}")
        self.kernel.used.add(operand[1:])
        return operand[1:]

    def shared_address(self, name: str) -> int | None:
        if name in self.dynamic_shared:
            return (self.kernel.static_shared + 15) // 16 * 16
        return self.kernel.shared.get(name)

    def source(self, operand: str, kind: str, any_width: bool = False) -> str:
        bits = width(kind)
        if operand in SPECIAL:
            if bits != 32:
                raise ValueError(f"{operand} as {kind}")
            return f"std::uint32_t{{{SPECIAL[operand]}}}"
        if operand.startswith("%"):
            return self.register(operand, None if any_width else bits)
        if kind == "f32":
            if found := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})", operand):
                return f"0x{found[1]}u"
        elif kind == "f64":
            if found := re.fullmatch(r"0[dD]([0-9A-Fa-f]{16})", operand):
                return f"std::uint64_t{{0x{found[1]}u}}"
        elif kind == "pred":
            if operand in ("0", "1", "-1"):
                return "true" if operand != "0" else "false"
        elif re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", operand):
            value = int(operand.rstrip("U"), 0)
            if not -(1 << (bits - 1)) <= value < 1 << bits:
                raise ValueError(f"{operand} does not fit {kind}")
            return f"{CXX_BITS[bits]}{{{value & ((1 << bits) - 1)}u{'ll' if bits == 64 else ''}}}"
        elif bits == 32 and (offset := self.shared_address(operand)) is not None:
            return f"{offset}u"
        elif bits == 64 and operand in self.kernel.parameters:
            return f"kParameterAddress + {self.kernel.parameters[operand][0]}u"
        elif bits == 64 and operand == self.kernel.local:
            return "kLocalAddress"
        raise ValueError(f"the operand {operand!r} as {kind}")

    def assign(self, operand: str, kind: str, value: str, any_width: bool = False) -> str:
        name = self.register(operand, width(kind) if width(kind) != 8 else 16, at_least=any_width)
        size = self.kernel.width_of(name)
        return f"{name} = static_cast<{CXX_BITS[size]}>({value});"

    def compute(self, form: Form, operands: list[str]) -> str:
        if len(operands) != 1 + len(form.sources):
            raise ValueError(f"{len(operands)} operands for {1 + len(form.sources)}")
        sources = [self.source(operand, kind, form.any_width) for operand, kind in zip(operands[1:], form.sources)]
        return self.assign(operands[0], form.result, form.code.format(*sources, line=self.at), form.any_width)

    def pair(self, operands: list[str]) -> str:
        """mov.b64 between a register and two halves, the low one first."""
        if len(operands) != 2:
            raise ValueError(f"{len(operands)} operands for 2")
        if operands[0].startswith("{"):
            low, high = split_operands(operands[0].strip("{} "))
            whole = self.source(operands[1], "b64")
            return f"{{ const std::uint64_t whole = {whole}; {self.assign(low, 'b32', 'whole')} {self.assign(high, 'b32', 'whole >> 32')} }}"
        low, high = (self.source(half, "b32") for half in split_operands(operands[1].strip("{} ")))
        return self.assign(operands[0], "b64", f"std::uint64_t{{{high}}} << 32 | {low}")

    def access(self, form: Memory, operands: list[str]) -> str:
        if len(operands) != 2:
            raise ValueError(f"{len(operands)} operands for 2")
        place, value = operands if form.store else reversed(operands)
        registers = split_operands(value.strip("{} ")) if value.startswith("{") else [value]
        if len(registers) != form.count:
            raise ValueError(f"{len(registers)} registers for {form.count}")
        found = re.fullmatch(r"\[([%\w]+)(?:\+(-?\d+))?\]", place)
        if not found:
            raise ValueError(f"the address {place!r}")
        base, offset = found[1], int(found[2] or 0)
        kind, size = form.kind, width(form.kind) // 8
        element = cxx(kind) if kind[0] != "f" else CXX_BITS[width(kind)]
        if form.space == "param" and not base.startswith("%"):
            if base not in self.kernel.parameters:
                raise ValueError(f"the parameter {base!r}")
            start, length = self.kernel.parameters[base]
            if not 0 <= offset <= length - size * form.count:
                raise ValueError(f"an access outside the parameter {base!r}")
            return " ".join(self.assign(register, kind, f"parameter<{element}>(t, {start + offset + k * size})", any_width=True)
                            for k, register in enumerate(registers))
        if base.startswith("%"):
            address = f"{self.register(base, 32 if form.space == 'shared' else 64)} + {CXX_BITS[32 if form.space == 'shared' else 64]}({offset})"
        elif form.space == "shared" and (start := self.shared_address(base)) is not None:
            address = f"{start + offset}u"
        else:
            raise ValueError(f"the address {place!r}")
        if form.space == "local" and not self.kernel.local:
            raise ValueError("local memory that is not declared")
        space = f"Space::k{form.space.capitalize()}"
        strong = "true" if form.strong else "false"
        vector = f"{element}, {form.count}"
        if form.store:
            for register in registers:
                if register.startswith("%"):
                    self.register(register, width(kind), at_least=True)
            values = ", ".join(f"static_cast<{element}>({self.source(register, kind, any_width=True)})" for register in registers)
            if form.space == "local":
                return f"store_local(t, local, {address}, Vector<{vector}>{{{{{values}}}}}, {self.at});"
            return f"store<{space}>(t, {address}, Vector<{vector}>{{{{{values}}}}}, {strong}, {self.at});"
        assignments = " ".join(self.assign(register, kind, f"v.x[{k}]", any_width=True) for k, register in enumerate(registers))
        if form.space == "param":
            return f"{{ const auto v = load_parameter<{vector}>(t, {address}, {self.at}); {assignments} }}"
        used = "~0u" if self.used_bytes is None else f"{self.used_bytes}u"
        if form.space == "local":
            return f"{{ const auto v = load_local<{vector}>(t, local, {address}, {self.at}); {assignments} }}"
        return f"{{ const auto v = load<{space}, {vector}>(t, {address}, {used}, {strong}, {self.at}); {assignments} }}"

    def control(self, name: str, operands: list[str]) -> str:
        count = {"bra": 1, "bra.uni": 1, "bar.sync": 1, "bar.warp.sync": 1, "nanosleep.u32": 1}.get(name, 0)
        if len(operands) != count:
            raise ValueError(f"{len(operands)} operands for {count}")
        if name.startswith("bra"):
            if not re.fullmatch(r"\$\w+", operands[0]):
                raise ValueError(f"the label {operands[0]!r}")
            return f"goto {operands[0][1:]};"
        if name == "ret":
            return "return;"
        if name == "bar.sync":
            if operands[0] != "0":
                raise ValueError(f"the barrier {operands[0]}")
            return f"barrier(t, {self.at});"
        if name == "bar.warp.sync":
            return f"warp(t, WarpOperation::kSync, 0, 0, 0, {self.source(operands[0], 'b32')}, {self.at});"
        if name == "nanosleep.u32":
            self.source(operands[0], "u32")
            self.kernel.waits_for_blocks = True
            return f"pause(t, {self.at});"
        return ";"  # membar: threads run one at a time, each sees all that was written before


def write(kernels: list[Kernel], source: str, target: int) -> str:
    out = ['#include "ptx/device.hpp"', '#include "ptx/instructions.hpp"', "", "namespace opd::ptx {", "namespace {", ""]
    for number, kernel in enumerate(kernels):
        out.append(f"void kernel_{number}(Thread& t) {{")
        for name in sorted(kernel.used):
            bits = kernel.width_of(name)
            poison = "false" if bits == 1 else f"{CXX_BITS[bits]}(0xA5A5A5A5A5A5A5A5u)"  # a register that was never set
            out.append(f"  {CXX_BITS[bits]} {name} = {poison};")
        if kernel.local:
            out.append(f"  Local<{kernel.local_bytes}> local;")
        out += [f"  {line}" for line in kernel.code]
        out += ["}", ""]
    out.append("const Kernel kernels[] = {")
    for number, kernel in enumerate(kernels):
        places = ", ".join(f"{{{offset}, {size}}}" for offset, size in kernel.parameters.values())
        out.append(f'  {{"{kernel.name}", "{source}", kernel_{number}, {{{places}}}, {kernel.parameter_bytes}, {kernel.static_shared}, '
                   f"{kernel.max_threads}, {'true' if kernel.waits_for_blocks else 'false'}, {target}}},")
    out += ["};", "[[maybe_unused]] const bool known = add_kernels(kernels, sizeof kernels / sizeof *kernels);", "", "}  // namespace",
            "}  // namespace opd::ptx", ""]
    return "\n".join(out)


def faults_of(file: Path) -> list[Fault]:
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    return [Fault(row["name"], re.compile(row["kernel"]), re.compile(row["find"]), row["replace"], row.get("occurrence"), number)
            for number, row in enumerate(rows, 1)]


def translate(text: str, source: str, faults: list[Fault] | None = None) -> str:
    """C++ of a PTX text. Raises Refused."""
    translator = Translator(text, faults or [])
    return write(translator.read(), source, translator.target)


def main() -> int:
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 4) or (len(arguments) == 4 and arguments[2] != "--faults"):
        print(__doc__, file=sys.stderr)
        return 2
    source, target = Path(arguments[0]), Path(arguments[1])
    faults = faults_of(Path(arguments[3])) if len(arguments) == 4 else []
    try:
        target.write_text(translate(source.read_text(encoding="utf-8"), source.name, faults), encoding="utf-8")
    except Refused as error:
        print(f"{source}:{error.line}: not emulated: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
