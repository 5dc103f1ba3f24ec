"""What `tamis doctor` looks at: each check is one function that returns one finding and raises nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tamis.config import BUNDLED_MODEL
from tamis.errors import TamisError

Status = Literal["ok", "note", "fail"]

SUPPORTED_PYTHONS = ((3, 11), (3, 12))
MIN_TORCH = (2, 11)
MIN_MEMORY_BYTES = 1 << 30
# (outputs, inputs) of a small model's projections, square to wide.
TYPICAL_SHAPES = ((384, 384), (2048, 384), (384, 2048), (4096, 512))
INSTALL_COMPILER = "Install one (apt-get install g++, dnf install gcc-c++ or xcode-select --install)"
REINSTALL = "Run: pip install --force-reinstall --no-deps tamis (in a clone: pip install -e .)"


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: of the thing checked.
        status: "fail" means that Tamis cannot serve; "note" that it serves, with less than it could have.
        value: what is there, one line.
        hint: the way out, when there is one.
        details: the same for programs.
    """

    name: str
    status: Status
    value: str
    hint: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


def python() -> Finding:
    """The interpreter's version."""
    version = platform.python_version()
    details = {"version": version, "executable": sys.executable, "platform": platform.platform()}
    if sys.version_info[:2] in SUPPORTED_PYTHONS:
        return Finding("python", "ok", f"{version} on {platform.system()} {platform.machine()}", None, details)
    return Finding("python", "fail", version, "Use Python 3.11 or 3.12.", details)


def torch() -> Finding:
    """Torch is there, loads and is new enough."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", "fail", f"does not import: {_one_line(error)}", 'Run: pip install "torch>=2.11"')
    details = {"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.version.cuda}
    value = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) < MIN_TORCH:
        return Finding("torch", "fail", value, 'Too old; run: pip install "torch>=2.11"', details)
    return Finding("torch", "ok", value, None, details)


def dependencies() -> Finding:
    """Every declared dependency is installed; their versions."""
    try:
        declared = importlib.metadata.requires("tamis") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("dependencies", "note", "unknown: Tamis runs from its sources", "Install it: pip install -e .")
    versions: dict[str, str | None] = {}
    for requirement in declared:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match is None or "extra ==" in requirement or ("win32" in requirement and sys.platform == "win32"):
            continue
        try:
            versions[match.group()] = importlib.metadata.version(match.group())
        except importlib.metadata.PackageNotFoundError:
            versions[match.group()] = None
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        hint = f"Run: pip install {' '.join(missing)}"
        return Finding("dependencies", "fail", f"missing: {', '.join(missing)}", hint, versions)
    return Finding("dependencies", "ok", f"all {len(versions)} installed", None, versions)


def cpu() -> Finding:
    """Processor, cores this process may use, instruction sets that kernels may use."""
    from tamis.kernels.cpu_extension import load

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model, flags = _cpuinfo()
    # The extension also asks whether the operating system saves the registers; /proc/cpuinfo is the next best.
    usable = {name for name, is_usable in load().cpu.items() if is_usable}
    usable = usable or flags & {"avx2", "avx512f", "avx512vbmi", "avx512_bf16", "amx_bf16"}
    names = ", ".join(sorted(usable)) or "no vector extension known here"
    details = {"model": model, "cores": cores, "instruction_sets": sorted(usable)}
    return Finding("cpu", "ok", f"{model}, {cores} cores: {names}", None, details)


def compiler() -> Finding:
    """A C++ compiler, which only an install needs."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
        if done.returncode == 0 and done.stdout:
            version = done.stdout.splitlines()[0]
            return Finding("compiler", "ok", version, None, {"path": path, "version": version})
    return Finding("compiler", "note", "no C++ compiler found", f"{INSTALL_COMPILER}; only the extension needs it.")


def extension() -> Finding:
    """The C++ extension, or why it is not there and how to get it."""
    from tamis.kernels.cpu_extension import load

    found = load()
    if found.module is not None:
        paths = [path for path, usable in found.build["paths"].items() if usable]
        value = f"{found.build['compiler']}; code paths {', '.join(paths)}"
        return Finding("C++ extension", "ok", value, None, found.build)
    hint = REINSTALL
    if compiler().status != "ok":
        hint = f"{INSTALL_COMPILER}, then install again. {REINSTALL}"
    return Finding("C++ extension", "note", f"{found.reason} Torch does its work.", hint)


def kernels() -> Finding:
    """Which implementation of each operation this machine uses, and why not another."""
    import torch

    from tamis.kernels.registry import explain

    choices = explain("cuda" if torch.cuda.is_available() else "cpu")
    used: dict[str, list[str]] = {}
    for choice in choices:
        used.setdefault(choice["implementation"], []).append(choice["op"])
    value = "; ".join(f"{name}: {', '.join(operations)}" for name, operations in used.items())
    refused = [
        f"{choice['op']} {name} is not used: {reason.rstrip('.')}."
        for choice in choices
        for name, reason in choice["refused"].items()
    ]
    return Finding("kernels", "ok", value, " ".join(refused) or None, {"choices": choices})


def invariance() -> Finding:
    """Whether this machine's matrix library gives a row the same bits whatever stands around it."""
    import torch

    from tamis.kernels.linear import broken_shapes

    broken = [shape[:2] for shape in broken_shapes((n, k, torch.float32) for n, k in TYPICAL_SHAPES)]
    if broken:
        value = f"matrix products of {', '.join(f'{n}x{k}' for n, k in broken)} depend on the batch"
        hint = "Greedy answers may differ with the load; another torch build or --threads 1 may help."
        return Finding("invariance", "note", value, hint, {"broken_shapes": broken})
    return Finding("invariance", "ok", "matrix products do not depend on the batch", None, {"broken_shapes": []})


def gpu() -> Finding:
    """GPUs that torch can use."""
    try:
        import torch
    except (ImportError, OSError):
        return Finding("gpu", "note", "unknown: torch does not import")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("gpu", "ok", ", ".join(names), None, {"names": names})
    if Path("/dev/nvidia0").exists():
        hint = "Install a torch built for CUDA and a driver that fits it."
        return Finding("gpu", "note", f"there is one, but torch {torch.__version__} cannot use it", hint)
    return Finding("gpu", "ok", "none: models run on the CPU", None, {"names": []})


def memory() -> Finding:
    """Memory that this process may still take: the machine's, or the container's when that is less."""
    from tamis.planner.memory import available_host_bytes

    available = available_host_bytes()
    value = f"{available / (1 << 30):.1f} GiB available"
    details = {"available_bytes": available}
    if available < MIN_MEMORY_BYTES:
        return Finding("memory", "fail", value, "Torch and the bundled model need 1 GiB: close something.", details)
    return Finding("memory", "ok", value, None, details)


def bundled_model() -> Finding:
    """The bundled model is there, complete and readable."""
    from safetensors import SafetensorError, safe_open

    from tamis.frontend.model_path import resolve_model
    from tamis.frontend.tokenizer import Tokenizer
    from tamis.models.config import read_config

    try:
        folder = resolve_model(BUNDLED_MODEL)
        read_config(folder)
        Tokenizer.from_folder(folder)
        weights = sorted(folder.glob("*.safetensors"))
        tensors = 0
        for path in weights:
            # Opening checks that the file is as long as its header says.
            with safe_open(path, framework="pt") as file:
                tensors += len(file.keys())
    except (TamisError, SafetensorError, OSError) as error:
        return Finding("bundled model", "fail", _one_line(error), REINSTALL)
    if not tensors:
        return Finding("bundled model", "fail", f"{folder} has no weights", REINSTALL)
    size_bytes = sum(path.stat().st_size for path in weights)
    details = {"folder": str(folder), "tensors": tensors, "size_bytes": size_bytes}
    return Finding("bundled model", "ok", f"{tensors} tensors, {size_bytes / 1e6:.1f} MB", None, details)


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    torch,
    dependencies,
    cpu,
    compiler,
    extension,
    kernels,
    invariance,
    gpu,
    memory,
    bundled_model,
)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _cpuinfo() -> tuple[str, set[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), set()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    return model.group(1) if model else platform.machine(), set(flags.group(1).split()) if flags else set()
