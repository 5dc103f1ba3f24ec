// The Python face of the C++ kernels: checks, dispatch by CPU, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "features.h"
#include "index_score.h"
#include "nvfp4.h"
#include "topk.h"

namespace nb = nanobind;

namespace {

template <typename T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// [blocks, 128, bytes of a key]; a block is dense, blocks lie a stride apart.
using Blocks = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::device::cpu>;

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

nb::dict build_info() {
  nb::dict paths;
  paths["scalar"] = true;
  paths["avx2"] = TAMIS_WITH_AVX2 && tamis::has_avx2();
  nb::dict score_paths;
  score_paths["scalar"] = true;
  score_paths["avx2"] = TAMIS_WITH_AVX2 && tamis::has_avx2_fma_f16c();
  nb::dict info;
  info["compiler"] = compiler();
  info["cxx_standard"] = static_cast<long>(__cplusplus);
  info["paths"] = paths;
  info["score_paths"] = score_paths;
  return info;
}

nb::dict cpu_features() {
  nb::dict features;
  for (const auto& [name, usable] : tamis::cpu_features()) features[name.c_str()] = usable;
  return features;
}

bool use_avx2(const std::string& path, bool usable) {
  if (path == "auto") return usable;
  if (path == "scalar") return false;
  if (path != "avx2") throw std::invalid_argument("path is '" + path + "', but must be auto, scalar or avx2.");
  if (!usable) throw std::invalid_argument("path is 'avx2', which this CPU or this build lacks.");
  return true;
}

void nvfp4_unpack(Flat<const std::uint8_t> codes, Flat<const std::uint8_t> scales, Flat<float> out,
                  const std::string& path, const std::string& contract) {
  const std::size_t groups = scales.shape(0);
  if (codes.shape(0) != groups * tamis::kGroupBytes || out.shape(0) != groups * tamis::kGroupValues) {
    throw std::invalid_argument("codes, scales and out have " + std::to_string(codes.shape(0)) + ", " +
                                std::to_string(groups) + " and " + std::to_string(out.shape(0)) +
                                " elements, but must stand as 8 : 1 : 16.");
  }
  [[maybe_unused]] const bool avx2 = use_avx2(path, TAMIS_WITH_AVX2 && tamis::has_avx2());
  if (contract != "exact" && contract != "e4m3") {
    throw std::invalid_argument("contract is '" + contract + "', but must be exact or e4m3.");
  }
  const float* table = tamis::nvfp4_table(contract == "exact" ? tamis::Contract::kExact : tamis::Contract::kE4m3);
  nb::gil_scoped_release release;
#if TAMIS_WITH_AVX2
  if (avx2) return tamis::nvfp4_unpack_avx2(codes.data(), scales.data(), out.data(), groups, table);
#endif
  tamis::nvfp4_unpack_scalar(codes.data(), scales.data(), out.data(), groups, table);
}

tamis::KeyFormat key_format(const std::string& name) {
  if (name == "float32") return tamis::KeyFormat::kFloat32;
  if (name == "bfloat16") return tamis::KeyFormat::kBfloat16;
  if (name == "fp8") return tamis::KeyFormat::kFp8;
  if (name == "nvfp4") return tamis::KeyFormat::kNvfp4Exact;
  if (name == "nvfp4 e4m3") return tamis::KeyFormat::kNvfp4E4m3;
  throw std::invalid_argument("format is '" + name + "', but must be float32, bfloat16, fp8, nvfp4 or nvfp4 e4m3.");
}

std::size_t key_bytes(tamis::KeyFormat format, std::size_t dim) {
  switch (format) {
    case tamis::KeyFormat::kFloat32: return dim * 4;
    case tamis::KeyFormat::kBfloat16: return dim * 2;
    case tamis::KeyFormat::kFp8: return dim;
    default: return dim / 2;
  }
}

// Blocks whose keys are `bytes` each, one after the other; says what it is otherwise.
void check_blocks(const Blocks& blocks, std::size_t bytes, const char* name) {
  const bool dense = blocks.stride(2) == 1 && blocks.stride(1) == static_cast<std::int64_t>(bytes);
  if (blocks.shape(1) != tamis::kBlockTokens || blocks.shape(2) != bytes || !dense || blocks.stride(0) < 0) {
    throw std::invalid_argument(
        std::string(name) + " are [" + std::to_string(blocks.shape(0)) + ", " + std::to_string(blocks.shape(1)) + ", " +
        std::to_string(blocks.shape(2)) + "] bytes with strides " + std::to_string(blocks.stride(0)) + ", " +
        std::to_string(blocks.stride(1)) + " and " + std::to_string(blocks.stride(2)) + ", but must be [blocks, 128, " +
        std::to_string(bytes) + "], dense within a block.");
  }
}

void index_scores(Matrix<const float> query, Blocks codes, std::optional<Blocks> scales,
                  Flat<const std::int64_t> block_table, Flat<const std::int64_t> positions, Matrix<float> out,
                  const std::string& format_name, int threads, const std::string& path) {
  const tamis::KeyFormat format = key_format(format_name);
  const bool nvfp4 = format == tamis::KeyFormat::kNvfp4Exact || format == tamis::KeyFormat::kNvfp4E4m3;
  const std::size_t rows = query.shape(0), dim = query.shape(1), num_blocks = block_table.shape(0);
  if (dim == 0 || dim % tamis::kGroupValues || dim > tamis::kMaxIndexDim) {
    throw std::invalid_argument("dim is " + std::to_string(dim) + ", but must be a multiple of 16, at most 256.");
  }
  const std::size_t tokens = positions.shape(0);
  if (out.shape(0) != rows || out.shape(1) != num_blocks || tokens == 0 || rows % tokens) {
    throw std::invalid_argument("out is [" + std::to_string(out.shape(0)) + ", " + std::to_string(out.shape(1)) +
                                "] for " + std::to_string(rows) + " rows of " + std::to_string(tokens) +
                                " tokens and " + std::to_string(num_blocks) + " blocks.");
  }
  check_blocks(codes, key_bytes(format, dim), "codes");
  if (nvfp4 != scales.has_value()) throw std::invalid_argument("nvfp4 keys have scales and no others have.");
  if (nvfp4) check_blocks(*scales, dim / tamis::kGroupValues, "scales");
  const std::size_t pool = nvfp4 ? std::min(codes.shape(0), scales->shape(0)) : codes.shape(0);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const std::int64_t id = block_table.data()[i];
    if (id < 0 || static_cast<std::size_t>(id) >= pool) {
      throw std::invalid_argument("block_table[" + std::to_string(i) + "] is " + std::to_string(id) +
                                  ", but the pool has " + std::to_string(pool) + " blocks.");
    }
  }
  const tamis::KeyLane lane = {format,
                               dim,
                               codes.data(),
                               static_cast<std::size_t>(codes.stride(0)),
                               nvfp4 ? scales->data() : nullptr,
                               nvfp4 ? static_cast<std::size_t>(scales->stride(0)) : 0};
  tamis::ScoreBlock score_block = tamis::score_block_scalar;
  [[maybe_unused]] const bool avx2 = use_avx2(path, TAMIS_WITH_AVX2 && tamis::has_avx2_fma_f16c());
#if TAMIS_WITH_AVX2
  if (avx2) score_block = tamis::score_block_avx2;
#endif
  nb::gil_scoped_release release;
  tamis::index_scores(score_block, lane, query.data(), rows, rows / tokens, positions.data(), block_table.data(),
                      num_blocks, out.data(), threads);
}

void select_blocks(Matrix<const float> scores, Flat<const std::int64_t> positions, Matrix<std::int64_t> out,
                   std::int64_t init, std::int64_t local, int threads) {
  const std::size_t rows = scores.shape(0), tokens = positions.shape(0);
  if (tokens == 0 || rows % tokens || out.shape(0) != rows || scores.shape(1) > 0xFFFFFFFFu) {
    throw std::invalid_argument("scores have " + std::to_string(rows) + " rows of " + std::to_string(scores.shape(1)) +
                                " blocks, positions " + std::to_string(tokens) + " and out " +
                                std::to_string(out.shape(0)) + ".");
  }
  if (init < 0 || local < 0) throw std::invalid_argument("init and local must not be negative.");
  nb::gil_scoped_release release;
  tamis::select_blocks(scores.data(), rows, rows / tokens, scores.shape(1), positions.data(), out.shape(1), init, local,
                       out.data(), threads);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "C++ kernels of Tamis; tamis.kernels.cpu_extension is their only caller.";
  m.def("build_info", &build_info);
  m.def("cpu_features", &cpu_features);
  m.def("nvfp4_unpack", &nvfp4_unpack, nb::arg("codes").noconvert(), nb::arg("scales").noconvert(),
        nb::arg("out").noconvert(), nb::arg("path") = "auto", nb::arg("contract") = "exact");
  m.def("index_scores", &index_scores, nb::arg("query").noconvert(), nb::arg("codes").noconvert(),
        nb::arg("scales").noconvert().none(), nb::arg("block_table").noconvert(), nb::arg("positions").noconvert(),
        nb::arg("out").noconvert(), nb::arg("format"), nb::arg("threads"), nb::arg("path") = "auto");
  m.def("select_blocks", &select_blocks, nb::arg("scores").noconvert(), nb::arg("positions").noconvert(),
        nb::arg("out").noconvert(), nb::arg("init"), nb::arg("local"), nb::arg("threads"));
}
