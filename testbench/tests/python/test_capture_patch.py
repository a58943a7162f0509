"""opd.capture.patch: an attribute is what it was once everybody has left, in whatever order they leave."""
import itertools

import pytest

from opd.capture.patch import Patch


@pytest.fixture
def classes():
    class Base:
        def value(self):
            return ["original"]

    class Derived(Base):
        pass
    return Base, Derived


def named(name: str):
    return lambda original: lambda self: [name, *original(self)]


@pytest.mark.parametrize("at", range(2), ids=["own", "inherited"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_original_comes_back_in_every_order(classes, at, order):
    owner = classes[at]
    before = dict(vars(owner))
    patches = [Patch(owner, "value", named(name)) for name in "abc"]
    assert owner().value() == ["c", "b", "a", "original"]
    for i in order:
        patches[i].remove()
        patches[i].remove()
    assert dict(vars(owner)) == before and owner().value() == ["original"] and not Patch._standing


def test_another_s_replacement_is_left_in_place(classes):
    Base, _ = classes
    first = Patch(Base, "value", named("first"))
    foreign = (lambda original: lambda self: ["foreign", *original(self)])(Base.value)
    Base.value = foreign
    first.remove()
    assert Base.value is foreign and not Patch._standing
    second = Patch(Base, "value", named("second"))
    second.remove()
    assert Base.value is foreign


def test_different_attributes_do_not_wait_for_each_other(classes):
    Base, Derived = classes
    first, second = Patch(Base, "value", named("first")), Patch(Derived, "value", named("second"))
    first.remove()
    assert Base().value() == ["original"]
    second.remove()
    assert "value" not in vars(Derived) and not Patch._standing
