"""scripts/generate_registers: what the description says is in what is generated, or is refused."""
import importlib.machinery
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator():
    pytest.importorskip("systemrdl", reason="systemrdl-compiler is not installed: scripts/setup --for test installs it")
    sys.path.insert(0, str(ROOT / "scripts"))
    loader = importlib.machinery.SourceFileLoader("generate_registers", str(ROOT / "scripts" / "generate_registers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("generate_registers", loader))
    loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def changed(generator, tmp_path):
    """The map of a description in which one text is another."""
    def read(old: str, new: str):
        for source in (generator.SOURCE, generator.UNIT_SOURCE):
            (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / source)
        text = (tmp_path / generator.SOURCE).read_text()
        assert text.count(old) == 1
        (tmp_path / generator.SOURCE).write_text(text.replace(old, new))
        return {field.path: field for register in generator.read_maps(tmp_path)[1] for field in register.fields}
    return read


def test_a_range_and_a_reset_value_are_read(changed):
    shift = changed("field { opd_minimum = 1; opd_maximum = 8;", "field { opd_minimum = 2; opd_maximum = 9;")["BASELINE.SHIFT"]
    assert (shift.minimum, shift.maximum, shift.reset) == (2, 9, 4)


@pytest.mark.parametrize("old, new, error", [
    ('field { opd_signed; desc = "2^-8', 'field { opd_signed; opd_maximum = 8; desc = "2^-8',
     "HINT_SETTING.LOSS_SCALE_SHIFT: opd_maximum of a signed field"),
    ('field { opd_signed; desc = "2^-8', 'field { opd_signed; opd_minimum = 1; opd_maximum = 8; desc = "2^-8',
     "HINT_SETTING.LOSS_SCALE_SHIFT: opd_minimum and opd_maximum of a signed field"),
    ("opd_minimum = 1; opd_maximum = 8;", "opd_minimum = 1; opd_maximum = 16;", "BASELINE.SHIFT: opd_minimum 1, opd_maximum 16: no range within 4 bits"),
    ("opd_minimum = 1; opd_maximum = 8;", "opd_minimum = 8; opd_maximum = 1;", "BASELINE.SHIFT: opd_minimum 8, opd_maximum 1: no range"),
    ("opd_minimum = 1; opd_maximum = 8;", "opd_minimum = 5; opd_maximum = 8;", "BASELINE.SHIFT: the reset value 4 is outside of 5..8"),
], ids=["signed", "signed twice", "too wide", "reversed", "reset"])
def test_what_would_not_be_kept_is_refused(changed, old, new, error):
    with pytest.raises(ValueError) as caught:
        changed(old, new)
    assert str(caught.value).startswith(error)
