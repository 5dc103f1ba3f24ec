"""Import arrows go down only, and each part uses no more third-party packages than it is allowed."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.arch.imports import PACKAGE, ROOT, Import, module_name, package_imports, part, sources
from tests.arch.rules import BESIDE, CONTRACTS, FACES, HEAVY, ORDER, THIRD_PARTY, VALUES

IMPORTS = package_imports()
INTERNAL = [found for found in IMPORTS if found.target.split(".")[0] == "tamis"]
EXTERNAL = [
    found for found in IMPORTS if found.target.split(".")[0] not in sys.stdlib_module_names | {"tamis", "__future__"}
]


def may_import(found: Import) -> bool:
    """Whether the arrows allow an import from one part of the package to another."""
    here, there = found.place, part(found.target)
    if here == there and found.target != "tamis":
        return True
    if found.target == "tamis._cpu":
        return found.module == "tamis.kernels.cpu_extension"
    if found.target in VALUES:
        return here != "kernels"
    if here in CONTRACTS.get(found.target, set()):
        return True
    if here in FACES:
        return there in FACES[here]
    if here in BESIDE:
        return there in BESIDE[here]["imports"]
    if there in BESIDE:
        return here in BESIDE[there]["imported_by"]
    return here in ORDER and there in ORDER and ORDER.index(here) <= ORDER.index(there)


def listing(found: list[Import]) -> str:
    return "\n".join(dict.fromkeys(str(one) for one in found))


def test_every_part_has_a_place_in_the_house() -> None:
    parts = {part(module_name(path)) for path in sources()} - {part(value) for value in VALUES} - set(FACES)

    homeless = parts - set(ORDER) - set(BESIDE)

    assert not homeless, f"{sorted(homeless)} stand in no table of tests/arch/rules.py: give each a place there."


def test_arrows_go_down_only() -> None:
    up = [found for found in INTERNAL if not may_import(found)]

    assert not up, f"against the arrows {' → '.join(ORDER)}:\n{listing(up)}"


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("tamis.server.app", "tamis.wire.client", True),
        ("tamis.wire.client", "tamis.server.app", False),
        ("tamis.runner.inputs", "tamis.engine.plan", True),
        ("tamis.models.m3", "tamis.engine.plan", False),
        ("tamis.kernels.moe.cpu", "tamis.kernels.linear", True),
        ("tamis.kernels.moe.cpu", "tamis.errors", False),
        ("tamis.cache.pool", "tamis.errors", True),
        ("tamis.engine.core", "tamis", False),
        ("tamis.engine.core", "tamis.train.nano", False),
        ("tamis.train.nano", "tamis.engine.core", False),
        ("tamis.cache.pool", "tamis._cpu", False),
        ("tamis.config", "tamis.engine.plan", False),
    ],
)
def test_the_rule_itself(module: str, target: str, allowed: bool) -> None:
    assert may_import(Import(module, target, 1, True)) is allowed


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_contracts_are_values(contract: str) -> None:
    """What may be imported from below must not drag its own part along: follow what it imports."""
    reached, new = set[str](), {contract}
    while new:
        reached |= new
        new = {found.target for found in INTERNAL if found.module in new and found.at_import} - reached

    heavy = [found for found in EXTERNAL if found.module in reached and found.target != "msgspec"]

    assert not heavy, listing(heavy)
    assert {part(module) for module in reached} <= {part(contract), *map(part, VALUES)}


def test_third_party_packages_stay_in_their_parts() -> None:
    stray = [found for found in EXTERNAL if found.target.split(".")[0] not in THIRD_PARTY.get(found.place, set())]

    assert not stray, f"not in THIRD_PARTY of tests/arch/rules.py:\n{listing(stray)}"


def test_every_third_party_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["demo"], *extras["train"], *extras["test"]]
    names = {line.split(";")[0].strip(" ").lower().replace("-", "_") for line in declared}
    # Imported under another name, or a fixed part of a declared package.
    comes_with = {"zmq": "pyzmq", "starlette": "fastapi", "pydantic": "fastapi", "triton": "torch"}

    imported = {found.target.split(".")[0] for found in EXTERNAL}
    missing = {name for name in imported if not any(n.startswith(comes_with.get(name, name)) for n in names)}

    assert not missing, f"imported but in no dependency list of pyproject.toml: {sorted(missing)}"


def loaded_by(modules: list[str], heavy: set[str]) -> set[str]:
    """Which of `heavy` are loaded after importing `modules` in a fresh interpreter."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return heavy & set(done.stdout.split())


def modules_of(folder: str) -> list[str]:
    # A `__main__` may do its work on import.
    return [module_name(path) for path in sorted((PACKAGE / folder).rglob("*.py")) if path.stem != "__main__"]


@pytest.mark.parametrize(
    ("folder", "heavy"),
    [("cli", HEAVY), ("engine", {"torch"}), ("wire", {"torch"}), ("server", {"torch"})],
)
def test_importing_a_part_loads_nothing_heavy(folder: str, heavy: set[str]) -> None:
    assert loaded_by(["tamis", *modules_of(folder)], heavy) == set()
