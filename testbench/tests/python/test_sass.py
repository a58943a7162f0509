"""How instructions are counted in machine code (scripts/sass.py), and that the committed counts are of the sources as they are.

Testplan: GPU-08.
"""
import json

import pytest
from pages import ROOT, script

SASS = script("sass.py")
COMMITTED = ROOT / "docs/measurements/sass.json"

# A loop within which the other way round is longer, and a loop without loads behind it.
LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.128 R8, [R2.64+0x1000] ;
        /*0030*/                   VIMNMX.U16x2 R0, R0, R4, !PT ;
        /*0040*/                   ISETP.GE.U32.AND P0, PT, R0, 0x7bff, PT ;
        /*0050*/              @!P0 BRA `(.L_x_2) ;
        /*0060*/                   IADD3 R20, R20, 0x1, RZ ;
        /*0070*/                   IADD3 R21, R21, 0x1, RZ ;
        /*0080*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0090*/                   FADD R6, R6, R5 ;
.L_x_3:
        /*00a0*/                   UIADD3 UR6, UR6, 0x1, URZ ;
        /*00b0*/                   MUFU.RCP R7, R7 ;
        /*00c0*/               @P1 BRA `(.L_x_1) ;
        /*00d0*/                   EXIT ;
.L_x_4:
        /*00e0*/                   BRA `(.L_x_4) ;
"""


def code_of(listing: str):
    return SASS.read_listing(listing)["kernel"]


def test_the_shortest_way_round_the_loop_is_counted():
    counts = SASS.count(code_of(LISTING))
    assert counts == {"loop": 9, "bytes": 32, "widest_load": 16, "generic_loads": 0, "kernel": 15,
                      "per_16_bytes": {"issue": 4.5, "integer": 1.0, "float": 0.5, "special": 0.5}}


def test_a_predicate_among_the_operands_is_a_condition():
    assert SASS.count(code_of(LISTING.replace("@!P0 BRA `(.L_x_2)", "BRA.U !UP0, `(.L_x_2)")))["loop"] == 9
    # A branch that is always taken leaves one way only, and the last one none.
    assert SASS.count(code_of(LISTING.replace("@!P0 BRA `(.L_x_2)", "BRA `(.L_x_3)")))["loop"] == 8
    with pytest.raises(SASS.Failed, match="not closed"):
        SASS.count(code_of(LISTING.replace("@!P0 BRA `(.L_x_2)", "EXIT")))


def test_what_is_no_loop_with_loads_is_refused():
    with pytest.raises(SASS.Failed, match="no loop with loads"):
        SASS.count(code_of(LISTING.replace("LDG.E.128", "LDS.128")))
    assert SASS.count(code_of(LISTING.replace("LDG.E.128", "LD.E.128")))["generic_loads"] == 2


def test_the_slowest_class_sets_the_rate():
    device = SASS.Device("D", 90, 10, 1e9, 1e13, "")
    counts = {"per_16_bytes": {"issue": 40, "integer": 32, "float": 2, "special": 1}}
    # 32 warp instructions of 32 lanes on 64 lanes: 16 clocks for 512 bytes.
    assert SASS.rate(counts, device) == pytest.approx(512 / 16 * 10 * 1e9)
    assert SASS.of_bandwidth(counts, device) == pytest.approx(0.032)
    counts["per_16_bytes"]["special"] = 16
    assert SASS.rate(counts, device) == pytest.approx(512 / 32 * 10 * 1e9)
    assert SASS.of_bandwidth(counts, SASS.Device("D", 90, 10, 1e9, 1e9, "")) == 1


def test_the_committed_counts_are_of_these_sources():
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert committed["sources"] == SASS.source_digest(), "run scripts/measure sass"
    assert committed["before"]["commit"] == SASS.BEFORE


def test_the_committed_kernels_do_what_the_page_says():
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    for kind in ("reference", "capture"):
        for target in map(str, SASS.TARGETS):
            before, after = committed["before"][kind][target], committed["after"][kind][target]
            assert before.keys() == after.keys() and len(after) == (5 if kind == "reference" else 6)
            for name, counts in after.items():
                assert counts["widest_load"] == 16 and counts["generic_loads"] == 0, (kind, target, name)
                slack = 1.0 if (target, name) in (("80", "E4M3"), ("80", "E5M2")) else 0.8
                assert counts["per_16_bytes"]["issue"] <= slack * before[name]["per_16_bytes"]["issue"], (kind, target, name)
