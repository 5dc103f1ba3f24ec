"""Selection of implementations: declared capabilities decide, and refusals say why."""

from __future__ import annotations

import pytest

from tamis.kernels import cpu_extension, registry


@pytest.fixture(autouse=True)
def fresh_selection():
    registry.select.cache_clear()
    yield
    registry.select.cache_clear()


def test_every_op_has_an_implementation_on_both_devices():
    for device in ("cpu", "cuda"):
        entries = registry.explain(device)
        assert len(entries) >= 9
        assert all(e["implementation"] in ("torch", "native") for e in entries)


def test_a_missing_extension_falls_back_and_says_why(monkeypatch):
    native = next(i for i in registry.IMPLEMENTATIONS if i.name == "native")
    broken = registry.Implementation(**{**native.__dict__, "missing": lambda: "no compiler was found"})
    others = tuple(i for i in registry.IMPLEMENTATIONS if i is not native)
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", (broken, *others))
    assert registry.select("nvfp4", "cpu", "exact").name == "torch"
    entry = next(e for e in registry.explain("cpu") if e["op"] == "nvfp4")
    assert entry["refused"] == {"native": "no compiler was found"}


@pytest.mark.parametrize("contract", ["exact", "e4m3"])
def test_the_native_codec_serves_both_contracts_on_a_cpu(contract):
    expected = "torch" if cpu_extension.load().reason else "native"
    assert registry.select("nvfp4", "cpu", contract).name == expected
    assert registry.select("nvfp4", "cuda", contract).name == "torch"


def test_explain_speaks_of_the_variant_that_will_be_asked_for(monkeypatch):
    narrow = registry.Implementation("nvfp4", "narrow", variants=("exact",))
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", (narrow, *registry.IMPLEMENTATIONS))
    entry = next(e for e in registry.explain("cpu", {"nvfp4": "e4m3"}) if e["op"] == "nvfp4")
    assert entry["implementation"] != "narrow"
    assert entry["refused"]["narrow"] == "computes exact only"


def test_an_unknown_op_is_refused_by_name():
    with pytest.raises(LookupError, match="warp_drive"):
        registry.select("warp_drive", "cpu")
