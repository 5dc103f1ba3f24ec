"""`convert`: what is exact stays exact, what is not touched stays as it is, and an interrupted run goes on."""

from __future__ import annotations

import json
import re
import resource
import signal
from pathlib import Path

import pytest
import torch

from tamis.errors import CheckpointError, ConfigError
from tamis.kernels.packed_weight import dense
from tamis.models.config import read_config
from tamis.models.quantization import WeightFormat
from tamis.models.tensor_schema import linears
from tamis.runner import convert as convert_module
from tamis.runner.checkpoint import Checkpoint
from tamis.runner.conversion_folder import ConversionFolder
from tests.runner.small_checkpoint import (
    CONFIG,
    EXPERT,
    LAYER,
    LINEAR,
    VISION,
    change,
    change_json,
    convert_quietly,
    tensors_of,
    values_of,
    write_plain,
)

ALL = ["m3.1", "modelopt", "mxfp8", "bf16"]


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def linear_names(folder) -> list[str]:
    return [spec.name for spec in linears(read_config(folder))]


@pytest.mark.parametrize("target", ALL[:3])
def test_quantised_values_are_near_the_source(stored_in, plain_checkpoint, target):
    source, stored = tensors_of(plain_checkpoint), tensors_of(stored_in(target))
    for name in linear_names(plain_checkpoint):
        want, got = values_of(source, name), values_of(stored, name)
        is_nvfp4 = f"{name}.weight_scale" in stored
        error = float((got - want).norm() / want.norm())
        assert error < (0.12 if is_nvfp4 else 0.04), name
        assert is_nvfp4 == (".experts." in name and target != "mxfp8")


def test_mxfp8_to_bf16_is_exact(stored_in, tmp_path):
    convert_quietly(stored_in("mxfp8"), tmp_path / "out", "bf16")
    packed, plain = tensors_of(stored_in("mxfp8")), tensors_of(tmp_path / "out")
    for name in linear_names(stored_in("mxfp8")):
        assert plain[f"{name}.weight"].dtype == torch.bfloat16
        assert torch.equal(plain[f"{name}.weight"].float(), values_of(packed, name)), name


def test_nvfp4_goes_between_its_layouts_and_back_bit_for_bit(stored_in, tmp_path):
    convert_quietly(stored_in("m3.1"), tmp_path / "there", "modelopt")
    convert_quietly(tmp_path / "there", tmp_path / "back", "m3.1")
    packed, there, back = (tensors_of(f) for f in (stored_in("m3.1"), tmp_path / "there", tmp_path / "back"))
    assert packed.keys() == back.keys()
    assert all(equal_bits(packed[name], back[name]) for name in packed)
    assert equal_bits(there[f"{EXPERT}.weight"], packed[f"{EXPERT}.weight_packed"])
    assert equal_bits(there[f"{EXPERT}.weight_scale"], packed[f"{EXPERT}.weight_scale"])
    assert torch.equal(there[f"{EXPERT}.weight_scale_2"], 1.0 / packed[f"{EXPERT}.weight_global_scale"])


@pytest.mark.parametrize("value", torch.rand(20, generator=torch.Generator().manual_seed(7)).add(1e-3).tolist())
def test_a_foreign_global_scale_moves_by_at_most_one_place(copy_in, tmp_path, value):
    folder = copy_in("modelopt")
    change(folder, lambda t: t.update({f"{EXPERT}.weight_scale_2": torch.tensor(value)}))
    convert_quietly(folder, tmp_path / "out", "m3.1")
    before, after = tensors_of(folder), tensors_of(tmp_path / "out")
    got = 1.0 / after[f"{EXPERT}.weight_global_scale"]
    assert abs(int(got.view(torch.int32)) - int(torch.tensor(value).view(torch.int32))) <= 1
    assert equal_bits(after[f"{EXPERT}.weight_packed"], before[f"{EXPERT}.weight"])


@pytest.mark.parametrize("target", ["m3.1", "modelopt"])
def test_in_its_own_layout_every_scale_stays_as_it_is(copy_in, tmp_path, target):
    folder = copy_in(target)
    value = torch.tensor(1620.6897)  # its reciprocal's reciprocal is another number
    assert 1.0 / (1.0 / value) != value
    change(folder, lambda t: t.update({n: value.clone() for n in t if n.startswith(EXPERT) and not t[n].dim()}))
    convert_quietly(folder, tmp_path / "out", target, shard_bytes=40_000)
    before, after = tensors_of(folder), tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(equal_bits(before[name], after[name]) for name in before)


def test_an_input_scale_that_the_target_has_not_does_not_matter(copy_in, tmp_path):
    folder = copy_in("modelopt")
    change(folder, lambda t: t.update({f"{EXPERT}.input_scale": torch.tensor(0.0)}))
    convert_quietly(folder, tmp_path / "plain", "bf16")
    with pytest.raises(CheckpointError, match=rf"{EXPERT}\.input_scale holds 0\.0"):
        convert_quietly(folder, tmp_path / "packed", "m3.1")


def test_input_scales_are_kept_and_else_1(copy_in, stored_in, tmp_path):
    folder = copy_in("modelopt")
    change(folder, lambda t: t.update({f"{EXPERT}.input_scale": torch.tensor(0.25)}))
    convert_quietly(folder, tmp_path / "out", "m3.1")
    out = tensors_of(tmp_path / "out")
    assert float(out[f"{EXPERT}.input_global_scale"]) == 4.0
    assert float(out[f"{LAYER}block_sparse_moe.experts.0.w1.input_global_scale"]) == 1.0


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("start", ALL)
def test_everything_else_is_copied_bit_for_bit(stored_in, tmp_path, start, target):
    convert_quietly(stored_in(start), tmp_path / "out", target)
    before, after = tensors_of(stored_in(start)), tensors_of(tmp_path / "out")
    others = Checkpoint(stored_in(start), read_config(stored_in(start))).plain
    assert f"{LAYER}block_sparse_moe.e_score_correction_bias" in others
    for name in [*others, VISION]:
        assert equal_bits(before[name], after[name]), name
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("target", ALL)
def test_the_config_says_what_was_written(stored_in, target):
    raw = json.loads((stored_in(target) / "config.json").read_text())
    stated = raw.pop("quantization_config", None)
    assert raw == CONFIG
    assert (stated is None) == (target == "bf16")
    assert (stored_in(target) / "hf_quant_config.json").exists() == (target == "modelopt")
    formats = {spec.is_routed: spec.format for spec in linears(read_config(stored_in(target)))}
    assert (
        formats
        == {
            "m3.1": {True: WeightFormat.NVFP4_PACKED, False: WeightFormat.MXFP8},
            "modelopt": {True: WeightFormat.NVFP4, False: WeightFormat.MXFP8},
            "mxfp8": {True: WeightFormat.MXFP8, False: WeightFormat.MXFP8},
            "bf16": {True: WeightFormat.PLAIN, False: WeightFormat.PLAIN},
        }[target]
    )


def test_kv_scales_and_their_cache_format_survive(copy_in, tmp_path):
    folder = copy_in("mxfp8")
    change(folder, lambda t: t.update({f"{LAYER}self_attn.k_proj.k_scale": torch.tensor(0.5)}))
    change_json(folder / "config.json", lambda c: c["quantization_config"].update(kv_cache_quant_algo="FP8"))
    convert_quietly(folder, tmp_path / "one", "modelopt")
    convert_quietly(tmp_path / "one", tmp_path / "two", "m3.1")
    for out in (tmp_path / "one", tmp_path / "two"):
        assert float(tensors_of(out)[f"{LAYER}self_attn.k_scale"]) == 0.5
        assert read_config(out).kv_cache_format == "fp8"


KEPT = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"),
    *("configuration_minimax_m3_vl.py", "image_processing_minimax_m3_vl.py", "LICENSE"),
)
LEFT = ("README.md", "log.jsonl", "loss.png", "notes", "report.json", "scores.json", "train.py")


def test_files_of_a_checkpoint_are_copied_and_all_others_listed(tmp_path):
    source = write_plain(tmp_path / "source")
    for name in (*KEPT, *LEFT):
        (source / name).write_text(name)
    (source / "dspark").mkdir()

    done = convert_quietly(source, tmp_path / "out", "m3.1")

    assert {name: (tmp_path / "out" / name).read_text() for name in KEPT} == {name: name for name in KEPT}
    assert done.left_out == tuple(sorted((*LEFT, "dspark")))
    assert not {"dspark", *LEFT} & {path.name for path in (tmp_path / "out").iterdir()}


def test_shards_hold_at_most_what_was_asked(stored_in, plain_checkpoint, tmp_path):
    done = convert_quietly(plain_checkpoint, tmp_path / "out", "m3.1", shard_bytes=40_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    whole, cut = tensors_of(stored_in("m3.1")), tensors_of(tmp_path / "out")
    assert done.num_shards == len(set(index["weight_map"].values())) > 3
    assert index["metadata"]["total_size"] == done.num_bytes == sum(t.nbytes for t in cut.values())
    assert index["weight_map"].keys() == whole.keys() == cut.keys()
    assert all(equal_bits(whole[n], cut[n]) for n in whole)
    for file in set(index["weight_map"].values()):
        assert sum(cut[n].nbytes for n, f in index["weight_map"].items() if f == file) <= 40_000
    Checkpoint(tmp_path / "out", read_config(tmp_path / "out"))


def test_an_interrupted_conversion_goes_on(plain_checkpoint, tmp_path, monkeypatch):
    written: list[str] = []
    write = ConversionFolder.write_shard

    def fail_at_third(self, name, tensors):
        if len(written) == 2:
            raise OSError("no power")
        written.append(name)
        write(self, name, tensors)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ConversionFolder, "write_shard", fail_at_third)
        with pytest.raises(OSError, match="no power"):
            convert_quietly(plain_checkpoint, out, "m3.1", shard_bytes=40_000)
    assert not (out / "config.json").exists()
    times = {name: (out / name).stat().st_mtime_ns for name in written}
    (out / written[1]).write_bytes((out / written[1]).read_bytes()[:-7])  # cut short by the failure

    done = convert_quietly(plain_checkpoint, out, "m3.1", shard_bytes=40_000)

    assert done.num_reused == 1
    assert (out / written[0]).stat().st_mtime_ns == times[written[0]]
    Checkpoint(out, read_config(out))
    assert convert_quietly(plain_checkpoint, out, "m3.1", shard_bytes=40_000).num_reused == done.num_shards


def other_weights(source, out):
    write_plain(source, seed=1)
    return source, out, "m3.1"


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (lambda source, out: (source, out, "mxfp8"), r"other settings .*format m3\.1.*now .*format mxfp8"),
        (other_weights, "conversion from another source"),
        (lambda source, out: (source, source, "m3.1"), "is the source itself"),
        (lambda source, out: (source, source.parent, "m3.1"), "is not empty and holds no unfinished conversion"),
        (lambda source, out: (source, source / "config.json", "m3.1"), "is a file"),
    ],
    ids=["another-format", "another-source", "onto-itself", "foreign-folder", "file"],
)
def test_a_folder_with_something_else_is_refused(tmp_path, arrange, message):
    source, out = write_plain(tmp_path / "source"), tmp_path / "out"
    convert_quietly(source, out, "m3.1")
    source, folder, target = arrange(source, out)
    before = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else None
    with pytest.raises(ConfigError, match=message):
        convert_quietly(source, folder, target)
    if before is not None:
        assert sorted(p.name for p in folder.iterdir()) == before


def test_too_small_a_disk_is_said_before_anything_is_written(plain_checkpoint, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(convert_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ConfigError, match=r"takes .* GB more, but .* has 0\.0 GB free"):
        convert_quietly(plain_checkpoint, tmp_path / "out", "bf16")
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("target", ALL[:3])
def test_a_matrix_of_tiny_numbers_can_be_loaded_again(tmp_path, target):
    source = write_plain(tmp_path / "source")
    change(source, lambda t: t[f"{EXPERT}.weight"].mul_(1e-37))
    convert_quietly(source, tmp_path / "out", target)
    stored = Checkpoint(tmp_path / "out", read_config(tmp_path / "out"))
    assert float(dense(stored.read_linear(EXPERT), torch.float32).abs().max()) < 1e-36


def test_a_weight_that_is_no_number_is_refused_by_name(tmp_path):
    source = write_plain(tmp_path / "source")
    change(source, lambda t: t[f"{LINEAR}.weight"].view(-1)[5].fill_(float("inf")))
    with pytest.raises(CheckpointError, match=rf"{LINEAR}\.weight holds a value that is no finite number"):
        convert_quietly(source, tmp_path / "out", "m3.1")


def link_in_a_circle(path):
    path.symlink_to(path.name)
    return path


def below_a_file(path):
    path.write_text("")
    return path / "out"


@pytest.mark.parametrize(
    "arrange",
    [link_in_a_circle, below_a_file, lambda path: path / ("a" * 300), lambda path: Path("/proc/tamis")],
    ids=["circle", "below-a-file", "long-name", "no-folders-here"],
)
def test_a_folder_that_cannot_be_written_is_named(plain_checkpoint, tmp_path, arrange):
    folder = arrange(tmp_path / "out")
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(folder))} cannot be written: .*"):
        convert_quietly(plain_checkpoint, folder, "bf16")


@pytest.mark.parametrize("limit_bytes", [100, 20_000, 90_000])
def test_a_file_that_does_not_fit_is_an_error_and_the_next_run_goes_on(plain_checkpoint, tmp_path, limit_bytes):
    out = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"cannot be written: .*File too large"):
            convert_quietly(plain_checkpoint, out, "bf16", shard_bytes=100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (out / "config.json").exists()
    convert_quietly(plain_checkpoint, out, "bf16", shard_bytes=100_000)
    Checkpoint(out, read_config(out))


def fill(name, value):
    return lambda t: t.update({name: torch.full_like(t[name], value)})


def nan_code(name):
    def edit(tensors):
        tensors[name].view(torch.uint8).view(-1)[3] = 0x7F

    return edit


@pytest.mark.parametrize(
    ("start", "target", "name", "edit"),
    [
        ("mxfp8", "m3.1", f"{EXPERT}.weight", nan_code(f"{EXPERT}.weight")),
        ("mxfp8", "mxfp8", f"{LINEAR}.weight", nan_code(f"{LINEAR}.weight")),
        ("mxfp8", "m3.1", f"{EXPERT}.weight", fill(f"{EXPERT}.weight_scale_inv", 254)),
        ("modelopt", "m3.1", f"{EXPERT}.weight", fill(f"{EXPERT}.weight_scale_2", 3e38)),
        ("bf16", "m3.1", "language_model.model.norm.weight", fill("language_model.model.norm.weight", float("nan"))),
        ("bf16", "bf16", f"{EXPERT}.weight", lambda t: t.update({f"{EXPERT}.weight": torch.full((32, 96), 3.4e38)})),
        (
            "bf16",
            "m3.1",
            f"{LAYER}self_attn.k_scale",
            lambda t: t.update({f"{LAYER}self_attn.k_scale": torch.zeros(())}),
        ),
        ("modelopt", "m3.1", f"{EXPERT}.weight_scale_2", fill(f"{EXPERT}.weight_scale_2", 1e-42)),
        ("modelopt", "m3.1", f"{EXPERT}.input_scale", fill(f"{EXPERT}.input_scale", 1e-42)),
    ],
    ids=["nan-code", "kept-nan-code", "mxfp8-range", "nvfp4-range", "norm", "bf16-range", "kv", "scale", "input-scale"],
)
def test_no_value_that_is_no_number_is_passed_on(copy_in, tmp_path, start, target, name, edit):
    folder = copy_in(start)
    change(folder, edit)
    with pytest.raises(CheckpointError, match=rf"^{name}.* holds .*(no finite number|but must be)"):
        convert_quietly(folder, tmp_path / "out", target)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("target", ["m3.1", "modelopt"])
@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-37, 3.2e-35])
def test_a_matrix_too_small_for_a_global_scale_still_loads(tmp_path, target, value):
    source = write_plain(tmp_path / "source")
    change(source, fill(f"{EXPERT}.weight", value))
    convert_quietly(source, tmp_path / "out", target)
    weight = Checkpoint(tmp_path / "out", read_config(tmp_path / "out")).read_linear(EXPERT)
    assert float((weight.dequantize() - value).abs().max()) <= max(value * 0.1, 2688 * 2.0**-126)


def test_progress_ends_at_100(plain_checkpoint, tmp_path):
    seen: list[tuple[str, int]] = []
    convert_module.convert(
        plain_checkpoint,
        tmp_path / "out",
        "bf16",
        shard_bytes=40_000,
        progress=lambda stage, percent: seen.append((stage, percent)),
    )
    assert seen[-1] == ("converting", 100)
    assert [p for _, p in seen] == sorted(p for _, p in seen)
