"""Cases of every instruction that ptx/translate.py knows: a PTX kernel for each, and what it must give.

Usage: instruction_cases.py OUTPUT.ptx OUTPUT.inc

What an instruction must give is computed here with Python's integers and fractions, exact and without a width, from the PTX
ISA, and rounded once. A case is a thread: four 64-bit inputs, four 64-bit outputs that were zero.
"""
import math
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ptx"))
import translate  # noqa: E402

REGISTERS = {1: "p", 8: "rs", 16: "rs", 32: "r", 64: "rd"}
FLOATS = [0x00000000, 0x80000000, 0x3F800000, 0xBFC00000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000,
          0x7FC00001, 0xFFFFFFFF, 0x3F800001, 0x33800000, 0x34000000, 0x4B800001]
DOUBLES = [0, 1 << 63, 0x3FF0000000000000, 0xBFF8000000000000, 1, 0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF,
           0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF, 0x3FF0000000000001, 0x3CA0000000000000,
           0x3CB0000000000000, 0x4330000000000001]
ROUNDED_TO_BINARY32 = [0x3FF0000010000000, 0x3FF0000010000001, 0x3FF0000030000000, 0x47EFFFFFF0000000, 0x47EFFFFFEFFFFFFF, 0x36A0000000000000,
                       0x3690000000000000, 0x3690000000000001, 0x380FFFFFF0000000]  # ties, the limit, subnormals
FORMATS = {"f32": ("<I", "<f", 24, -149, 128), "f64": ("<Q", "<d", 53, -1074, 1024)}  # bits, value, precision, lowest bit, 2^n is too large
NAN = {"f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}


@dataclass
class Kernel:
    """One launch: its body after the inputs' address (%rd1) and the outputs' (%rd2), and its cases."""
    instruction: str
    body: list[str]
    cases: list[tuple[list[int], list[int]]]
    block: bool = False  # with a parameter of 32 bytes, the inputs of case 0
    shared: bool = False
    local: bool = False


def width(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:])


def wrap(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def number(bits: int, kind: str) -> int | float | bool:
    """What a register's bits mean."""
    if kind == "pred":
        return bool(bits)
    if kind in FORMATS:
        return struct.unpack(FORMATS[kind][1], struct.pack(FORMATS[kind][0], bits))[0]
    value = wrap(bits, width(kind))
    return value - (1 << width(kind)) if kind[0] == "s" and value >> (width(kind) - 1) else value


def encode(value: int | float | bool, kind: str) -> int:
    if kind not in FORMATS:
        return wrap(int(value), width(kind))
    if math.isnan(value):
        return NAN[kind]
    try:
        return struct.unpack(FORMATS[kind][0], struct.pack(FORMATS[kind][1], value))[0]
    except OverflowError:
        return encode(math.copysign(math.inf, value), kind)


def rounded(value: Fraction, negative_zero: bool, kind: str) -> float:
    """To nearest, ties to even; of no magnitude the sign that is given."""
    _, _, precision, lowest, limit = FORMATS[kind]
    sign = -1.0 if value < 0 else 1.0
    if value == 0:
        return -0.0 if negative_zero else 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, lowest)
    result = round(value / unit) * unit
    if abs(result) >= Fraction(2) ** limit:
        return sign * math.inf
    return sign * float(abs(result))


def fused(x: float, y: float, z: float, kind: str) -> float:
    if any(map(math.isnan, (x, y, z))):
        return math.nan
    if math.isinf(x) or math.isinf(y):
        return math.nan if x == 0 or y == 0 else math.copysign(math.inf, x) * math.copysign(1, y) + z
    if math.isinf(z):
        return z
    negative = math.copysign(1, x) != math.copysign(1, y)
    product = Fraction(x) * Fraction(y)
    return rounded(product + Fraction(z), product == 0 and z == 0 and negative and math.copysign(1, z) < 0, kind)


def quotient(x: float, y: float, kind: str) -> float:
    sign = math.copysign(1, x) * math.copysign(1, y)
    if math.isnan(x) or math.isnan(y) or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return math.nan
    if y == 0 or math.isinf(x):
        return sign * math.inf
    return sign * 0.0 if math.isinf(y) else rounded(Fraction(x) / Fraction(y), sign < 0, kind)


def root(x: float, kind: str) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    if x == 0 or math.isinf(x):
        return x
    scaled = Fraction(x) * 4 ** 700  # an integer, with more bits of its root than are kept
    found = math.isqrt(int(scaled))
    return rounded((found + Fraction(found * found != scaled, 2)) / 2 ** 700, False, kind)


def samples(kind: str, rng: random.Random) -> list[int]:
    """Bits worth trying."""
    if kind in FORMATS:
        return FLOATS if kind == "f32" else DOUBLES
    bits = width(kind)
    if bits == 1:
        return [0, 1]
    return sorted({0, 1, 2, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1, (1 << bits) - 2, rng.getrandbits(bits), rng.getrandbits(bits)})


def extreme(a: int, b: int, kind: str, largest: bool) -> int:
    if kind == "f32":
        x, y = number(a, kind), number(b, kind)
        if math.isnan(x) or math.isnan(y):
            return encode(y if math.isnan(x) else x, kind)
        order = sorted((a, b), key=lambda bits: (number(bits, kind), bits >> 31 == 0))  # -0 before +0
        return order[1 if largest else 0]
    pick = max if largest else min
    return encode(pick(number(a, kind), number(b, kind)), kind)


def compare(operation: str, x: float, y: float) -> bool:
    unordered = math.isnan(x) or math.isnan(y) if isinstance(x, float) else False
    base = operation[:2]
    if operation in ("num", "nan"):
        return unordered == (operation == "nan")
    if unordered:
        return len(operation) == 3
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[base]


def shifted(name: str, a: int, places: int, kind: str) -> int:
    value = number(a, kind)
    if name == "shl":
        return 0 if places >= width(kind) else wrap(value << places, width(kind))
    return wrap(value >> min(places, 64), width(kind))


def permuted(a: int, b: int, selector: int) -> int:
    data = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    digits = [selector >> 4 * k & 0xF for k in range(4)]
    return int.from_bytes(bytes((0xFF if data[digit & 7] & 0x80 else 0) if digit & 8 else data[digit] for digit in digits), "little")


def inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = position & 0xFF, length & 0xFF
    mask = wrap(((1 << length) - 1) << position, bits)
    return b & ~mask | wrap(a << position, bits) & mask


def model(name: str, form: "translate.Form") -> Callable[..., int]:
    """Bits in, bits out."""
    parts = name.split(".")
    kind = parts[-1]
    if kind == "u16x2":
        return lambda a, b: sum(max(a >> shift & 0xFFFF, b >> shift & 0xFFFF) << shift for shift in (0, 16))
    if kind in FORMATS and parts[0] in ("add", "sub", "mul"):
        sign = 1.0 if parts[0] == "add" else -1.0
        one = number(encode(1.0, kind), kind)

        def of_floats(a: int, b: int) -> int:
            x, y = number(a, kind), number(b, kind)
            if parts[0] == "mul":  # -0 as the addend leaves the product's sign
                return encode(fused(x, y, -0.0, kind) if x != 0 and y != 0 else x * y, kind)
            return encode(fused(one, x, sign * y, kind), kind)
        return of_floats
    if parts[0] in ("add", "sub", "mul") and "wide" not in parts:
        operate = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}[parts[0]]

        def arithmetic(a: int, b: int) -> int:
            x, y = number(a, kind), number(b, kind)
            return encode(operate(x, y), kind)
        return arithmetic
    return {
        "mul": lambda a, b: encode(number(a, kind) * number(b, kind), form.result),
        "mad": lambda a, b, c: encode(number(a, kind) * number(b, kind) + number(c, kind), kind),
        "fma": lambda a, b, c: encode(fused(number(a, kind), number(b, kind), number(c, kind), kind), kind),
        "div": lambda a, b: encode(quotient(number(a, kind), number(b, kind), kind) if kind in FORMATS else a // b, kind),
        "rem": lambda a, b: a % b,
        "rcp": lambda a: encode(quotient(1.0, number(a, kind), kind), kind),
        "sqrt": lambda a: encode(root(number(a, kind), kind), kind),
        "prmt": permuted,
        "neg": lambda a: a ^ 1 << (width(kind) - 1) if kind in FORMATS else encode(-number(a, kind), kind),
        "min": lambda a, b: extreme(a, b, kind, False),
        "max": lambda a, b: extreme(a, b, kind, True),
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
        "not": lambda a: wrap(~a, width(kind)),
        "shl": lambda a, places: shifted("shl", a, places, kind),
        "shr": lambda a, places: shifted("shr", a, places, kind),
        "clz": lambda a: width(kind) - a.bit_length(),
        "brev": lambda a: int(f"{a:0{width(kind)}b}"[::-1], 2),
        "bfi": lambda a, b, position, length: inserted(a, b, position, length, width(kind)),
        "setp": lambda a, b: compare(parts[1], number(a, kind), number(b, kind)),
        "selp": lambda a, b, chosen: a if chosen else b,
        "cvt": lambda a: encode(float(number(a, kind)), form.result) if form.result in FORMATS else encode(number(a, kind), parts[1]),
        "mov": lambda a: a,
        "cvta": lambda a: a,
    }[parts[0]]


def inputs_of(name: str, form: "translate.Form", rng: random.Random) -> Iterator[list[int]]:
    """Operands worth trying together: all pairs of the samples, some of the triples and more."""
    choices = []
    for k, kind in enumerate(form.sources):
        bits = width(form.sources[0])
        if name.startswith(("shl", "shr")) and k == 1:
            choices.append([0, 1, bits - 1, bits, bits + 1, 63, 64, 0xFFFFFFFF])
        elif name.startswith("prmt") and k == 2:
            choices.append([0x3210, 0x7654, 0x2104, 0xFEDC, 0x8888, 0x0B73, 0x12345678])
        elif name in ("div.u32", "div.u64", "rem.u32", "rem.u64") and k == 1:
            choices.append([value for value in samples(kind, rng) if value != 0])
        elif name == "cvt.rn.f32.f64":
            choices.append(DOUBLES + ROUNDED_TO_BINARY32 + [value | 1 << 63 for value in ROUNDED_TO_BINARY32])
        elif name.startswith("bfi") and k >= 2:
            choices.append([0, 1, 8, 16, bits - 1, bits, 255, 256 + 8])
        else:
            choices.append(samples(kind, rng))
    total = math.prod(map(len, choices))
    for number_of_case in range(total) if total <= 300 else rng.sample(range(total), 300):
        operands = []
        for choice in choices:
            number_of_case, at = divmod(number_of_case, len(choice))
            operands.append(choice[at])
        yield operands
    if all(kind in FORMATS for kind in form.sources) and "rn" in name.split("."):
        for _ in range(100):  # of every exponent, and near each other, where a second rounding would show
            near = rng.random() < 0.7
            operands = []
            for kind in form.sources:
                bits = rng.getrandbits(width(kind))
                operands.append(encode(number(bits & (1 << FORMATS[kind][2] - 1) - 1 | encode(1.0, kind), kind) * rng.choice((-0.25, 1, 2)), kind) if near else bits)
            yield operands


def load_inputs(kinds: tuple[str, ...]) -> list[str]:
    """Input k to register k + 4 of its width."""
    lines = []
    for k, kind in enumerate(kinds):
        if kind == "pred":
            lines += [f"ld.global.u32 %r{k + 4}, [%rd1+{8 * k}];", f"setp.ne.s32 %p{k + 4}, %r{k + 4}, 0;"]
        else:
            register = REGISTERS[width(kind)]
            lines.append(f"ld.global.b{max(16, width(kind))} %{register}{k + 4}, [%rd1+{8 * k}];")
    return lines


def store_result(kind: str, register: int = 3, offset: int = 0) -> list[str]:
    if kind == "pred":
        return [f"selp.u32 %r{register}, 1, 0, %p{register};", f"st.global.u32 [%rd2+{offset}], %r{register};"]
    return [f"st.global.b{max(16, width(kind))} [%rd2+{offset}], %{REGISTERS[width(kind)]}{register};"]


def computed(name: str, form: "translate.Form", rng: random.Random) -> Kernel:
    kinds, result = form.sources, form.result
    wide = form.any_width  # registers of 64 bits: what is above the type is ignored, and extended by its sign
    shown = ("b64",) * len(kinds) if wide else kinds
    operands = ", ".join(f"%{REGISTERS[width(kind)]}{k + 4}" for k, kind in enumerate(shown))
    target = "b64" if wide else result
    body = [*load_inputs(shown), f"{name} %{REGISTERS[width(target)]}3, {operands};", *store_result(target)]
    function = model(name, form)
    cases = []
    for values in inputs_of(name, form, rng):
        bits = int(function(*values))
        given = [value | rng.getrandbits(64 - width(kind)) << width(kind) for value, kind in zip(values, kinds)] if wide else values
        cases.append((given, [wrap(number(bits, result), 64) if wide else bits]))
    return Kernel(name, body, cases)


def accessed(name: str, form: "translate.Memory", rng: random.Random) -> Kernel:
    size, count = width(form.kind) // 8, form.count
    wide = count == 1 and form.kind not in FORMATS
    register = "rd" if wide else REGISTERS[width(form.kind)]
    registers = [f"%{register}{k + 4}" for k in range(count)]
    operand = registers[0] if count == 1 else "{" + ", ".join(registers) + "}"
    stored = 64 if wide else max(16, width(form.kind))
    body, cases = [], []
    number_of_cases = 1 if form.space == "param" else 5
    if form.store:
        body += [f"ld.global.b{stored} {one}, [%rd1+{8 * k}];" for k, one in enumerate(registers)]
        if form.space == "shared":
            body.append(f"{name} [%r2], {operand};")
            for byte in range(size * count):
                body += [f"ld.shared.u8 %rs3, [%r2+{byte}];", f"st.global.u8 [%rd2+{byte}], %rs3;"]
        elif form.space == "local":
            body += ["mov.u64 %rd8, LOCAL;", f"{name} [%rd8], {operand};"]
            for byte in range(size * count):
                body += [f"ld.local.u8 %rs3, [%rd8+{byte}];", f"st.global.u8 [%rd2+{byte}], %rs3;"]
        else:
            body.append(f"{name} [%rd2], {operand};")
    else:
        if form.space == "shared":
            for word in range(4):
                body += [f"ld.global.b64 %rd3, [%rd1+{8 * word}];", f"st.shared.b64 [%r2+{8 * word}], %rd3;"]
        if form.space == "local":
            body.append("mov.u64 %rd8, LOCAL;")
            for word in range(4):
                body += [f"ld.global.b64 %rd3, [%rd1+{8 * word}];", f"st.local.b64 [%rd8+{8 * word}], %rd3;"]
        address = {"param": "[BLOCK]", "shared": "[%r2]", "local": "[%rd8]", "global": "[%rd1]"}[form.space]
        body.append(f"{name} {operand}, {address};")
        body += [f"st.global.b{stored} [%rd2+{8 * k}], {one};" for k, one in enumerate(registers)]
    for _ in range(number_of_cases):
        words = [rng.getrandbits(64) for _ in range(4)]
        if form.store:
            data = b"".join(wrap(word, 8 * size).to_bytes(size, "little") for word in words[:count]).ljust(32, b"\0")
            expected = [int.from_bytes(data[8 * k:8 * k + 8], "little") for k in range(4)]
        else:
            data = b"".join(word.to_bytes(8, "little") for word in words)
            kind = form.kind if form.kind not in FORMATS else f"b{width(form.kind)}"
            expected = [wrap(number(int.from_bytes(data[size * k:size * (k + 1)], "little"), kind), stored) for k in range(count)]
        cases.append((words, expected))
    return Kernel(name, body, cases, block=form.space == "param", shared=form.space == "shared", local=form.space == "local")


def shuffled(name: str, rng: random.Random) -> Iterator[Kernel]:
    mode = name.split(".")[2]
    for segment in (32, 8):
        for distance in (0, 1, 3, 17) if mode != "idx" else (None,):
            clamp = (32 - segment) << 8 | (0 if mode == "up" else 31)
            values = [rng.getrandbits(32) for _ in range(32)]
            cases = []
            for lane in range(32):
                first = lane // segment * segment
                chosen = rng.randrange(32) if distance is None else distance
                source = {"up": lane - chosen, "down": lane + chosen, "bfly": lane ^ chosen, "idx": first + chosen % segment}[mode]
                if mode == "up" and source < first or mode != "up" and source >= first + segment:
                    source = lane
                cases.append(([values[lane], chosen, clamp], [values[source]]))
            yield Kernel(name, [*load_inputs(("b32",) * 3), f"{name} %r3, %r4, %r5, %r6, -1;", *store_result("b32")], cases)


def together(name: str, rng: random.Random) -> Iterator[Kernel]:
    """Votes and reductions of a whole warp."""
    form = translate.FORMS[name]
    parts = name.split(".")
    source = form.sources[0]
    kind = parts[-1] if parts[0] == "redux" else "pred"
    for values in ([rng.getrandbits(width(source)) for _ in range(32)], [1] * 32, [0] * 32, [0] * 31 + [1]):
        numbers = [number(value, kind) for value in values]
        result = {"add": lambda: sum(numbers), "min": lambda: min(numbers), "max": lambda: max(numbers), "all": lambda: all(numbers),
                  "any": lambda: any(numbers), "ballot": lambda: sum(value << lane for lane, value in enumerate(numbers))}[parts[2]]()
        operand = f"%{REGISTERS[width(source)]}4"
        target = f"%{REGISTERS[width(form.result)]}3"
        yield Kernel(name, [*load_inputs((source,)), f"{name} {target}, {operand}, -1;", *store_result(form.result)],
                     [([value], [wrap(result, width(form.result))]) for value in values])


def others(rng: random.Random) -> Iterator[Kernel]:
    """Operands of other kinds, and what computes nothing."""
    word = rng.getrandbits(64)
    low, high = word & 0xFFFFFFFF, word >> 32
    yield Kernel("mov.b64", ["ld.global.b64 %rd3, [%rd1];", "mov.b64 {%r3, %r4}, %rd3;", *store_result("b32"), *store_result("b32", 4, 8)], [([word], [low, high])])
    yield Kernel("mov.b64", [*load_inputs(("b32", "b32")), "mov.b64 %rd3, {%r4, %r5};", *store_result("b64")], [([low, high], [word])])
    lanes = range(32)
    for register, values in {"%tid.x": list(lanes), "%laneid": list(lanes), "%ntid.x": [32] * 32, "%ctaid.x": [0] * 32, "%nctaid.x": [1] * 32,
                             "%lanemask_lt": [(1 << k) - 1 for k in lanes], "%lanemask_le": [(2 << k) - 1 for k in lanes],
                             "%lanemask_ge": [wrap(-1 << k, 32) for k in lanes], "%lanemask_gt": [wrap(-2 << k, 32) for k in lanes]}.items():
        yield Kernel("mov.u32", [f"mov.u32 %r3, {register};", *store_result("u32")], [([], [value]) for value in values])
    for text, value in {"-5": wrap(-5, 32), "0x1F": 31, "4294967295": 0xFFFFFFFF, "7U": 7}.items():
        yield Kernel("mov.u32", [f"mov.u32 %r3, {text};", *store_result("u32")], [([], [value])])
    yield Kernel("mov.f32", ["mov.f32 %r3, 0fC0490FDB;", *store_result("f32")], [([], [0xC0490FDB])])
    yield Kernel("mov.f64", ["mov.f64 %rd3, 0dC00921FB54442D18;", *store_result("f64")], [([], [0xC00921FB54442D18])])
    yield Kernel("add.s64", ["ld.global.u64 %rd3, [%rd1];", "add.s64 %rd3, %rd3, -8;", *store_result("b64")], [([3], [wrap(-5, 64)])])
    for sign, expected in {"": [0, 7], "!": [7, 0]}.items():  # a guard
        yield Kernel("mov.u32", [*load_inputs(("pred",)), "mov.u32 %r3, 0;", f"@{sign}%p4 mov.u32 %r3, 7;", *store_result("u32")],
                     [([value], [expected[value]]) for value in (0, 1)])
    yield Kernel("ld.shared.u32", ["ld.global.u32 %r4, [%rd1];", "st.shared.u32 [WORDS+8], %r4;", "ld.shared.u32 %r3, [WORDS+8];", *store_result("u32")],
                 [([77], [77])], shared=True)
    yield Kernel("ld.global.v4.u32", ["ld.global.b64 %rd4, [%rd1];", '.pragma "used_bytes_mask 255";', "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1];",
                                      *store_result("u32"), *store_result("u32", 4, 8)], [([word], [low, high])])
    words = [rng.getrandbits(64) for _ in range(4)]
    yield Kernel("ld.param.v2.u64", ["mov.b64 %rd8, BLOCK;", "add.s64 %rd8, %rd8, 32;", "ld.param.v2.u64 {%rd3, %rd4}, [%rd8+-16];", *store_result("b64"), *store_result("b64", 4, 8)],
                 [(words, words[2:])], block=True)
    for fence in ("membar.cta", "membar.gl"):
        yield Kernel(fence, ["ld.global.u32 %r4, [%rd1];", "st.global.u32 [%rd2], %r4;", f"{fence};", "ld.global.u32 %r3, [%rd2];", *store_result("u32", 3, 8)], [([9], [9, 9])])


def kernels() -> list[Kernel]:
    rng = random.Random(20240607)
    found = []
    for name, form in translate.FORMS.items():
        if isinstance(form, translate.Memory):
            found.append(accessed(name, form, rng))
        elif name.startswith("shfl"):
            found += shuffled(name, rng)
        elif name.startswith(("redux", "vote")):
            found += together(name, rng)
        else:
            found.append(computed(name, form, rng))
    return found + list(others(rng))


def ptx_of(name: str, kernel: Kernel) -> str:
    parameters = [f"\t.param .u64 {name}_in", f"\t.param .u64 {name}_out"]
    if kernel.block:
        parameters.append(f"\t.param .align 16 .b8 {name}_block[32]")
    lines = [f".visible .entry {name}(", ",\n".join(parameters), ")", "{",
             "\t.reg .pred %p<9>;", "\t.reg .b16 %rs<9>;", "\t.reg .b32 %r<9>;", "\t.reg .b64 %rd<9>;"]
    if kernel.local:
        lines.append(f"\t.local .align 16 .b8 \t{name}_local[32];")
    if kernel.shared:
        lines.append(f"\t.shared .align 16 .b8 {name}_words[{32 * len(kernel.cases)}];")
    lines += [f"\tld.param.u64 %rd1, [{name}_in];", f"\tld.param.u64 %rd2, [{name}_out];", "\tmov.u32 %r1, %tid.x;", "\tmul.wide.u32 %rd3, %r1, 32;",
              "\tadd.s64 %rd1, %rd1, %rd3;", "\tadd.s64 %rd2, %rd2, %rd3;"]
    if kernel.shared:
        lines += [f"\tmov.u32 %r2, {name}_words;", "\tshl.b32 %r1, %r1, 5;", "\tadd.s32 %r2, %r2, %r1;"]
    lines += ["\t" + line.replace("BLOCK", f"{name}_block").replace("WORDS", f"{name}_words").replace("LOCAL", f"{name}_local") for line in kernel.body]
    return "\n".join([*lines, "\tret;", "}", ""])


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    ptx = [".version 8.0", ".target sm_80", ".address_size 64", ""]
    table = []
    for number_of_kernel, kernel in enumerate(kernels()):
        name = re.sub(r"\W", "_", f"case_{number_of_kernel}_{kernel.instruction}")
        ptx.append(ptx_of(name, kernel))
        for given, expected in kernel.cases:
            words = ["{" + ", ".join(f"{value:#x}u" for value in [*values, 0, 0, 0, 0][:4]) + "}" for values in (given, expected)]
            table.append(f'{{"{kernel.instruction}", "{name}", {{{words[0]}}}, {{{words[1]}}}}},')
    Path(sys.argv[1]).write_text("\n".join(ptx), encoding="utf-8")
    Path(sys.argv[2]).write_text("\n".join(table) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
