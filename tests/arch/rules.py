"""The house as tables: who may import whom. DESIGN's arrows, with the few modules that are contracts named."""

from __future__ import annotations

# Each part may import itself and anything after it, never anything before it.
ORDER = (
    "cli",
    "server",
    "frontend",
    "wire",
    "engine",
    "runner",
    "models",
    "layers",
    "attention",
    "cache",
    "kernels",
)

# Parts beside the column: what they may import, and who may import them.
BESIDE = {
    # The training forward runs the served model's own modules, and renders with the served template.
    "train": {"imports": {"frontend", "models", "layers", "attention", "cache", "kernels"}, "imported_by": {"cli"}},
    # Measures what is served, with the questions that training keeps for tests.
    "bench": {"imports": {"frontend", "engine", "runner", "train"}, "imported_by": {"cli"}},
    # Formulas in pure Python: the start-up check and the command line call the same ones.
    "planner": {"imports": {"cache"}, "imported_by": {"cli", "server", "runner"}},
    # Data only.
    "nano": {"imports": set(), "imported_by": {"frontend", "cli", "train"}},
}

# Single modules at the root: values that every part but kernels may import, and the two faces of the package.
VALUES = {"tamis.errors", "tamis.config", "tamis.version"}
FACES = {"tamis": {"frontend", "engine"}, "__main__": {"cli"}}

# Modules that say what crosses an arrow: the part below needs them to be called at all. They are plain values
# (see test_contracts_are_values) and may be imported by the parts named here although these stand lower.
CONTRACTS = {
    "tamis.engine.plan": {"runner"},
    "tamis.engine.sampling_params": {"runner"},
    "tamis.engine.messages": {"runner"},
    "tamis.models.config": {"layers", "attention", "cache"},
}

TENSORS = {"torch", "triton", "numpy", "safetensors", "tokenizers"}

# Third-party packages by part. From runner down the code must run on a bare GPU machine; engine has no torch.
THIRD_PARTY = {
    # What is heavy only inside functions: test_importing_a_part_loads_nothing_heavy.
    "cli": {"cyclopts", "rich", "msgspec", "httpx", "openai", "torch", "safetensors"},
    "server": {"fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "prometheus_client", "msgspec", "rich"},
    "frontend": {"tokenizers", "jinja2", "huggingface_hub", "msgspec", "rich"},
    "wire": {"msgspec", "zmq"},
    "engine": {"msgspec"},
    "runner": TENSORS,
    "models": TENSORS,
    "layers": TENSORS,
    "attention": TENSORS,
    "cache": TENSORS,
    "kernels": TENSORS,
    "train": TENSORS | {"jinja2", "matplotlib"},
    "bench": {"torch"},
    "planner": set(),
    "nano": set(),
}

# Too slow to import before a command knows that it needs them.
HEAVY = {"torch", "fastapi", "uvicorn", "transformers", "matplotlib", "openai", "huggingface_hub", "triton"}
