"""Machine code of the device's kernels, without a device: instructions of the loop that reads elements, and what follows from
NVIDIA's published figures for how fast it can be at most.

The loop is found in nvdisasm's listing: of a kernel's backward branches the one whose body has most loads of elements. Counted is the shortest
way round it, which is the one of elements that are finite and below the limit.
"""
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import measurement

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "scripts" / "sass_kernels.cu"
BEFORE = "138d811"  # the commit that "before" is of
TARGETS = (80, 90, 100)
WARP = 32

# Lanes of one multiprocessor that take an instruction of a class in each clock; a warp occupies a class for 32 / lanes clocks.
# source: NVIDIA A100 and H100 Tensor Core GPU Architecture (white papers): an SM has four schedulers of one warp instruction a
# clock, 64 INT32 lanes, 64 (A100) or 128 (H100) FP32 lanes, 16 special function units
LANES = {80: {"issue": 128, "integer": 64, "float": 64, "special": 16}, 90: {"issue": 128, "integer": 64, "float": 128, "special": 16}}
FLOAT = {"FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2", "HFMA2_MMA"}
SPECIAL = {"MUFU", "I2F", "F2I", "F2F", "POPC", "FLO", "BREV", "I2FP", "F2FP"}
OTHER = {"BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "EXIT", "LDG", "LD", "LDC", "LDCU", "ULDC", "CS2R", "S2R", "S2UR", "R2UR", "DEPBAR", "BREAK", "ACQBULK", "PREEXIT",
         "BAR", "JMP", "CALL", "RET", "SHFL", "REDUX", "STG", "ST", "LDS", "STS"}


@dataclass(frozen=True)
class Device:
    name: str
    target: int
    multiprocessors: int
    clock: float      # Hz: the boost clock that the published peak rates are of
    bandwidth: float  # bytes per second, of the memory
    source: str


DEVICES = (Device("A100", 80, 108, 1.41e9, 2.039e12, "NVIDIA A100 Tensor Core GPU Architecture (white paper); data sheet of A100 80GB SXM"),
           Device("H100", 90, 132, 1.98e9, 3.35e12, "NVIDIA H100 Tensor Core GPU Architecture (white paper); data sheet of H100 SXM"),
           Device("H200", 90, 132, 1.98e9, 4.8e12, "as H100; data sheet of H200 SXM"))


class Failed(Exception):
    """A program that failed, or a listing that is not understood."""


def tool(name: str) -> str:
    """A program of the toolkit: beside the packages of the Python that runs this, else on PATH."""
    packages = Path(next(p for p in sys.path if p.endswith("site-packages")))
    for folder in ("nvidia/cu13/bin", "triton/backends/nvidia/bin"):
        if (packages / folder / name).is_file():
            return str(packages / folder / name)
    return name


def run(command: list, **options: object) -> bytes:
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, check=False, **options)
    except FileNotFoundError:
        raise Failed(f"{command[0]}: not found; scripts/setup --for test installs it") from None
    if done.returncode:
        raise Failed(f"{Path(str(command[0])).name}: exit status {done.returncode}\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


# --- the listing -----------------------------------------------------------------------------------------------------------

@dataclass
class Code:
    """Instructions of one kernel, in order; `labels` are places in them."""
    instructions: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read_listing(text: str) -> dict[str, Code]:
    """Kernels of nvdisasm -c, by name."""
    kernels: dict[str, Code] = {}
    code = Code()
    for line in text.splitlines():
        if found := re.match(r"\.text\.(\w+):", line):
            code = kernels.setdefault(found[1], Code())
        elif found := re.match(r"(\.L\w+):", line):
            code.labels[found[1]] = len(code.instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            code.instructions.append(re.sub(r"^\{\s*", "", found[1]))
    return kernels


def parts(instruction: str) -> tuple[bool, str, str]:
    """Whether it has a predicate, its name with all modifiers, its operands."""
    found = re.match(r"(@!?U?P\w+\s+)?(\S+)\s*(.*)", instruction)
    return found[1] is not None, found[2], found[3]


def target_of(code: Code, instruction: str) -> int | None:
    """Where a branch goes; None where it is none."""
    _, name, operands = parts(instruction)
    if name.split(".")[0] != "BRA":
        return None
    label = re.search(r"`\((\.L\w+)\)", operands)
    if not label:
        raise Failed(f"a branch without a label: {instruction}")
    return code.labels[label[1]]


def is_conditional(instruction: str) -> bool:
    """A branch that need not be taken: a predicate before it or among its operands."""
    predicated, _, operands = parts(instruction)
    return predicated or re.match(r"!?U?P\d", operands) is not None


def is_load(instruction: str) -> bool:
    return parts(instruction)[1].split(".")[0] in ("LDG", "LD")


def load_bytes(instruction: str) -> int:
    """Of one lane."""
    name = parts(instruction)[1]
    for modifier, size in ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1)):
        if modifier in name:
            return size
    return 4


def loop_of(code: Code) -> list[str]:
    """Instructions of the shortest way round the loop with the most bytes loaded, its branch included."""
    best: tuple[int, int, int] | None = None
    for at, instruction in enumerate(code.instructions):
        start = target_of(code, instruction)
        if start is not None and start <= at:
            loaded = sum(load_bytes(i) for i in code.instructions[start:at + 1] if is_load(i))
            if loaded and (best is None or (loaded, start - at) > (best[0], best[1] - best[2])):
                best = (loaded, start, at)
    if best is None:
        raise Failed("no loop with loads")
    _, start, end = best
    ways: dict[int, list[int]] = {start: [start]}  # the shortest way to each instruction; branches back are not taken
    for at in range(start, end):
        if at not in ways:
            continue
        instruction = code.instructions[at]
        target = target_of(code, instruction)
        nexts = [at + 1] if target is None or is_conditional(instruction) else []
        if target is not None and at < target <= end:
            nexts.append(target)
        if parts(instruction)[1].split(".")[0] == "EXIT" and not is_conditional(instruction):
            nexts = []
        for following in nexts:
            if following not in ways or len(ways[following]) > len(ways[at]) + 1:
                ways[following] = [*ways[at], following]
    if end not in ways:
        raise Failed("a loop that is not closed")
    return [code.instructions[at] for at in ways[end]]


def count(code: Code) -> dict:
    """Instructions of a warp per 16 bytes of each of its lanes, by class."""
    loop = loop_of(code)
    loads = [instruction for instruction in loop if is_load(instruction)]
    loaded = sum(load_bytes(instruction) for instruction in loads)
    classes = {"issue": len(loop), "integer": 0, "float": 0, "special": 0}
    for instruction in loop:
        name = parts(instruction)[1].split(".")[0]
        if name in FLOAT:
            classes["float"] += 1
        elif name in SPECIAL:
            classes["special"] += 1
        elif name not in OTHER and not name.startswith("U"):
            classes["integer"] += 1
    return {"loop": len(loop), "bytes": loaded, "widest_load": max(map(load_bytes, loads)), "generic_loads": sum(parts(i)[1].startswith("LD.") for i in loads),
            "per_16_bytes": {name: round(16 * number / loaded, 2) for name, number in classes.items()}, "kernel": len(code.instructions)}


# --- the kernels -----------------------------------------------------------------------------------------------------------

def device_kernels(sources: Path, target: int, folder: Path) -> dict[str, dict]:
    """Of the CUDA reference, format by format."""
    cubin = folder / f"slice-{target}.cubin"
    run([tool("nvcc"), "-std=c++20", "-O2", "--fmad=false", f"-arch=sm_{target}", "-cubin", f"-I{sources}/sw_reference/include",
         KERNELS, "-o", cubin])
    listing = read_listing(run([tool("nvdisasm"), "-c", cubin]).decode())
    return {name: count(code) for name, code in listing.items()}


# Compiles the capture's kernel, of the package on PYTHONPATH, for a target that need not be there: argv: target, folder.
CAPTURE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from opd.capture import kernel
function = kernel.statistics_kernel
for name, element in (("FP16", "*fp16"), ("BF16", "*i16"), ("FP32", "*fp32")):
    for full in (False, True):
        block = kernel.BLOCKS[full] if hasattr(kernel, "BLOCKS") else kernel.BLOCK
        constants = {"FULL": full, "BF16": name == "BF16", "COLUMNS": 9 if full else 2, "BLOCK": block}
        kinds = {"elements": element, "head": element, "out": "*fp64", "largest": "fp32", "normal": "fp32"}
        signature = {argument: "constexpr" if argument in constants else kinds.get(argument, "i32") for argument in function.arg_names}
        aligned = {(place,): [["tt.divisibility", 16]] for place, argument in enumerate(function.arg_names) if argument in ("elements", "out")}
        source = ASTSource(function, signature, constants, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": getattr(kernel, "WARPS", 4)})
        open(f"{sys.argv[2]}/{name} {'full' if full else 'core'}", "wb").write(compiled.asm["cubin"])
"""


def capture_kernels(sources: Path, target: int, folder: Path) -> dict[str, dict]:
    """Of the capture's Triton kernel, format by format and with each set of statistics; of a length that is no multiple of 16."""
    into = folder / f"capture-{target}"
    into.mkdir()
    run([sys.executable, "-c", CAPTURE, target, into],
        env={**os.environ, "PYTHONPATH": str(sources / "sw_reference" / "python"), "TRITON_CACHE_DIR": str(folder / f"cache-{target}")})
    found = {}
    for cubin in sorted(into.iterdir()):
        listing = read_listing(run([tool("nvdisasm"), "-c", cubin]).decode())
        found[cubin.name] = count(next(iter(listing.values())))
    return found


def kernels_of(sources: Path) -> dict[str, dict]:
    """All kernels of a checkout: {kind: {target: {name: counts}}}."""
    with tempfile.TemporaryDirectory() as folder:
        return {kind: {str(target): of(sources, target, Path(folder)) for target in TARGETS}
                for kind, of in (("reference", device_kernels), ("capture", capture_kernels))}


def kernels_before() -> dict[str, dict]:
    archive = run(["git", "-C", ROOT, "archive", BEFORE, "sw_reference"])
    with tempfile.TemporaryDirectory() as folder:
        run(["tar", "-x", "-C", folder], input=archive)
        return kernels_of(Path(folder))


# --- what follows ------------------------------------------------------------------------------------------------------------

def rate(counts: dict, device: Device) -> float:
    """Bytes per second at which the device can issue and execute the loop, had it its data: the slowest class of instructions sets it."""
    clocks = max(number * WARP / LANES[device.target][name] for name, number in counts["per_16_bytes"].items())
    return 16 * WARP / clocks * device.multiprocessors * device.clock


def of_bandwidth(counts: dict, device: Device) -> float:
    """The largest share of the memory's bandwidth that the loop can use, 1 at most."""
    return min(1.0, rate(counts, device) / device.bandwidth)


SOURCES = ("scripts/sass_kernels.cu", "sw_reference/include/opd/reference/segmented.hpp", "sw_reference/include/opd/reference/slice.hpp",
           "sw_reference/include/opd/reference/element.hpp", "sw_reference/include/opd/reference/tap.hpp", "sw_reference/python/opd/capture/kernel.py")


def source_digest() -> str:
    """Of all that the counts depend on, apart from the compilers."""
    return measurement.digest(ROOT / name for name in SOURCES)


def measured() -> dict:
    """What docs/measurements/sass.json holds. Raises Failed."""
    versions = {name: re.search(r"V([0-9.]+)", run([tool(name), "--version"]).decode())[1] for name in ("nvcc", "ptxas", "nvdisasm")}
    versions["triton"] = metadata.version("triton")
    return {"sources": source_digest(), "tools": versions, "before": {"commit": BEFORE, **kernels_before()}, "after": kernels_of(ROOT)}
