"""A checkpoint as the model sees it: every tensor accounted for by name, shape and dtype; linears as one weight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from tamis.errors import CheckpointError
from tamis.kernels.packed_weight import Weight
from tamis.models.config import M3Config
from tamis.models.quantization import WeightFormat
from tamis.models.tensor_schema import LinearSpec, TensorSpec, describe_formats, linear_tensors, linears, text_tensors
from tamis.runner.names import SKIPPED_PREFIXES, Source, sources
from tamis.runner.packing import unpack_parts
from tamis.runner.shards import Shards, dtype_bytes, listing


class Checkpoint:
    """The text model's tensors of a folder.

    Args:
        folder: with model.safetensors, or an index and its shards.
        config: as its config.json says.

    Attributes:
        linears: hub name without `.weight` → spec, for every linear of the decoder layers.
        plain: hub names of the other tensors, those that the model needs and the optional ones that are there.
        skipped: names of tensors that are no part of the text model.

    Raises:
        CheckpointError: no or broken shards; missing, surplus, misshapen or otherwise typed tensors, by name.
    """

    def __init__(self, folder: Path, config: M3Config):
        self.config = config
        self.shards = Shards(folder)
        self.linears: dict[str, LinearSpec] = {spec.name: spec for spec in linears(config)}
        self._expected = text_tensors(config)
        self._found = self._sources()
        self._check()
        self.plain = [n for n in self._found if n.rpartition(".")[0] not in self.linears]
        self.skipped = [n for n in self.shards.tensors if n.startswith(SKIPPED_PREFIXES)]

    def in_file_order(self) -> Iterator[str]:
        """Names of linears and of plain tensors, each once, as their first bytes lie in the files."""
        seen = set()
        for name in self._found:
            linear = name.rpartition(".")[0]
            unit = linear if linear in self.linears else name
            if unit not in seen:
                seen.add(unit)
                yield unit

    def read(self, name: str) -> Tensor:
        """A tensor by its full hub name."""
        source = self._found[name]
        return source.cut(self.shards.read(source.name))

    def layout(self, name: str) -> tuple[tuple[int, ...], int]:
        """(shape, bytes a value) of a plain or skipped tensor."""
        source = self._found.get(name)
        shape = source.shape if source is not None else self.shards.tensors[name].shape
        return shape, dtype_bytes(self.shards.tensors[source.name if source is not None else name].dtype)

    def parts(self, linear: str) -> dict[str, Tensor]:
        """The tensors of a linear by their name inside it; optional ones only when they are there."""
        prefix = f"{linear}."
        return {n: self.read(prefix + n) for n in linear_tensors(self.linears[linear]) if prefix + n in self._found}

    def read_linear(self, linear: str) -> Weight:
        """A linear as one weight, in its stored format.

        Raises:
            CheckpointError: a code or scale that is no number, see `unpack_parts`.
        """
        return unpack_parts(linear, self.linears[linear].format, self.parts(linear))

    def _sources(self) -> dict[str, Source]:
        found: dict[str, Source] = {}
        for name, source in sources({n: t.shape for n, t in self.shards.tensors.items()}):
            name = self._in_our_words(name)
            if name in found:
                raise CheckpointError(
                    f"{self.shards.folder} holds {name} twice, as {found[name].name} and as {source.name}.",
                    hint="Keep one of the two namings.",
                )
            found[name] = source
        return found

    def _in_our_words(self, name: str) -> str:
        """ModelOpt calls an MXFP8 linear's scales `weight_scale`, other tools `weight_scale_inv`."""
        linear, _, part = name.rpartition(".")
        spec = self.linears.get(linear)
        if part == "weight_scale" and spec is not None and spec.format is WeightFormat.MXFP8:
            return f"{linear}.weight_scale_inv"
        return name

    def _check(self) -> None:
        expected, found, stored = self._expected, self._found, self.shards.tensors
        both = [(expected[n], s) for n, s in found.items() if n in expected]
        problems = {
            "missing": [f"{n} ({t})" for n, t in expected.items() if t.is_required and n not in found],
            "surplus": [s.name for n, s in found.items() if n not in expected],
            "misshapen": [
                f"{s.name} is {list(s.shape)}, expected {list(t.shape)}" for t, s in both if not _fits(s.shape, t)
            ],
            # A quantised tensor of the right shape would load as if its codes were values.
            "of another dtype": [
                f"{s.name} is {stored[s.name].dtype}, expected {' or '.join(t.dtypes)}"
                for t, s in both
                if stored[s.name].dtype not in t.dtypes
            ],
        }
        told = [f"{len(p)} {kind} ({listing(dict.fromkeys(p))})" for kind, p in problems.items() if p]
        if told:
            formats = describe_formats(self.config)
            raise CheckpointError(
                f"The tensors of {self.shards.folder} do not fit its config.json: {'; '.join(told)}.",
                hint=f"By its config the linears are {formats}; check that weights and config belong together.",
            )


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    return shape == spec.shape or (spec.shape == () and shape == (1,))
