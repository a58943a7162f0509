"""testbench/vectors/binary32.txt: as Berkeley SoftFloat makes them, and what exact rational arithmetic rounds to."""
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VECTORS = [line.split() for line in (ROOT / "testbench/vectors/binary32.txt").read_text().splitlines() if not line.startswith("#")]
QUIET_NAN, INFINITY, SIGN = 0x7FC00000, 0x7F800000, 0x80000000


def value(bits: int) -> Fraction:
    """Of a finite number."""
    field, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    significand = fraction | 0x800000 if field else fraction
    return (-1 if bits & SIGN else 1) * significand * Fraction(2) ** (max(field, 1) - 150)


def rounded(exact: Fraction, zero: int = 0) -> int:
    """The bits of the nearest binary32 number, ties to the even significand; `zero` where exact is 0."""
    if exact == 0:
        return zero
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent  # 2^exponent <= magnitude < 2^(exponent + 1)
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    count = magnitude / unit
    significand = count.numerator // count.denominator
    rest = count - significand
    significand += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and significand % 2)
    # A significand that reaches the next power of two carries into the exponent field by itself.
    bits = significand if exponent < -126 else significand + (exponent + 126 << 23)
    return (SIGN if exact < 0 else 0) | min(bits, INFINITY)


def is_nan(bits: int) -> bool:
    return bits & ~SIGN > INFINITY


def added(a: int, b: int) -> int:
    infinite = [x for x in (a, b) if x & ~SIGN == INFINITY]
    if is_nan(a) or is_nan(b) or len(set(infinite)) == 2:
        return QUIET_NAN
    if infinite:
        return infinite[0]
    return rounded(value(a) + value(b), SIGN if a & b & SIGN else 0)


def multiplied(a: int, b: int) -> int:
    sign = (a ^ b) & SIGN
    infinite, zero = (any(x & ~SIGN == special for x in (a, b)) for special in (INFINITY, 0))
    if is_nan(a) or is_nan(b) or infinite and zero:
        return QUIET_NAN
    return sign | INFINITY if infinite else rounded(value(a) * value(b), sign) | sign


def test_vectors_are_what_rational_arithmetic_rounds_to():
    subnormal = 0
    for a, b, total, product, greater in VECTORS:
        a, b, total, product = (int(text, 16) for text in (a, b, total, product))
        assert (added(a, b), multiplied(a, b)) == (total, product), f"{a:08X} {b:08X}"
        order = [value(x) if x & ~SIGN != INFINITY else Fraction(2) ** 200 * (-1 if x & SIGN else 1) for x in (a, b) if not is_nan(x)]
        assert bool(int(greater)) == (len(order) == 2 and order[0] > order[1])
        subnormal += 0 < product & ~SIGN < 0x800000
    assert len(VECTORS) == 4096 and subnormal > 200


def test_vectors_are_what_softfloat_makes():
    pytest.importorskip("softfloatpy", reason="softfloatpy is not installed: scripts/setup --for test installs it")
    result = subprocess.run([sys.executable, ROOT / "scripts/float_vectors", "--check"], text=True, capture_output=True)
    assert result.returncode == 0 and "as committed" in result.stdout, result.stdout + result.stderr
