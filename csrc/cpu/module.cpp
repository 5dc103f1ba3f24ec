// The Python face of the C++ kernels: checks, dispatch by CPU, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "features.h"
#include "index_score.h"
#include "mixture.h"
#include "nvfp4.h"
#include "parallel.h"
#include "product.h"
#include "sparse_attention.h"
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

constexpr bool kWithAvx2 = TAMIS_WITH_AVX2;

nb::dict build_info() {
  nb::dict paths;
  paths["scalar"] = true;
  paths["avx2"] = kWithAvx2 && tamis::has_avx2();
  nb::dict info;
  info["compiler"] = compiler();
  info["cxx_standard"] = static_cast<long>(__cplusplus);
  info["paths"] = paths;
  return info;
}

nb::dict cpu_features() {
  nb::dict features;
  for (const auto& [name, usable] : tamis::cpu_features()) features[name.c_str()] = usable;
  return features;
}

bool use_avx2(const std::string& path) {
  const bool usable = kWithAvx2 && tamis::has_avx2();
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
  [[maybe_unused]] const bool avx2 = use_avx2(path);
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

template <typename T, int N>
using Dense = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

tamis::Product product_of(const std::string& path) {
  [[maybe_unused]] const bool avx2 = use_avx2(path);
#if TAMIS_WITH_AVX2
  if (avx2) return tamis::product_avx2;
#endif
  return tamis::product_scalar;
}

void linear(Matrix<const float> x, Matrix<const float> w, Matrix<float> out, int threads, const std::string& path) {
  const std::size_t count = x.shape(0), k = x.shape(1), n = w.shape(0);
  if (w.shape(1) != k || out.shape(0) != count || out.shape(1) != n) {
    throw std::invalid_argument("x, w and out are [" + std::to_string(count) + ", " + std::to_string(k) + "], [" +
                                std::to_string(n) + ", " + std::to_string(w.shape(1)) + "] and [" +
                                std::to_string(out.shape(0)) + ", " + std::to_string(out.shape(1)) + "].");
  }
  // A task is some columns for all rows, or for a run of many rows.
  constexpr std::size_t kColumns = 96, kRows = 256;
  const tamis::Product product = product_of(path);
  nb::gil_scoped_release release;
  const std::size_t strips = (n + kColumns - 1) / kColumns, runs = (count + kRows - 1) / kRows;
  tamis::parallel_for(strips * runs, tamis::threads_for(count * n * k, threads), [&](std::size_t task) {
    const std::size_t column = task % strips * kColumns, row = task / strips * kRows;
    const std::size_t columns = std::min(kColumns, n - column), rows = std::min(kRows, count - row);
    thread_local std::vector<const float*> from;
    thread_local std::vector<float*> to;
    from.resize(rows);
    to.resize(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      from[i] = x.data() + (row + i) * k;
      to[i] = out.data() + (row + i) * n + column;
    }
    product(from.data(), rows, w.data() + column * k, columns, k, to.data());
  });
}

void mixture(Matrix<const float> x, Matrix<const std::int64_t> experts, Matrix<const float> weights,
             Dense<const float, 3> gate_up, Dense<const float, 3> down, Matrix<const float> shared_gate_up,
             Matrix<const float> shared_down, Matrix<float> out, float scale, float alpha, float limit, int threads,
             const std::string& path) {
  tamis::Mixture m{};
  m.tokens = x.shape(0), m.chosen = experts.shape(1), m.num_experts = gate_up.shape(0);
  m.hidden = x.shape(1), m.inner = down.shape(2), m.shared = shared_down.shape(1);
  m.x = x.data(), m.experts = experts.data(), m.weights = weights.data();
  m.gate_up = gate_up.data(), m.down = down.data();
  m.shared_gate_up = shared_gate_up.data(), m.shared_down = shared_down.data(), m.out = out.data();
  m.scale = scale, m.alpha = alpha, m.limit = limit;
  const tamis::Product product = product_of(path);
  nb::gil_scoped_release release;
  tamis::mixture(m, product, threads);
}

using Cache = nb::ndarray<const std::uint8_t, nb::ndim<4>, nb::device::cpu>;

// [blocks, heads, 128, bytes], dense within a block of a head.
void check_cache(const Cache& cache, std::size_t heads, std::size_t bytes, const char* name) {
  const bool dense = cache.stride(3) == 1 && cache.stride(2) == static_cast<std::int64_t>(bytes);
  if (cache.shape(1) != heads || cache.shape(2) != tamis::kAttentionBlock || cache.shape(3) != bytes || !dense) {
    throw std::invalid_argument(std::string(name) + " are [" + std::to_string(cache.shape(0)) + ", " +
                                std::to_string(cache.shape(1)) + ", " + std::to_string(cache.shape(2)) + ", " +
                                std::to_string(cache.shape(3)) + "] bytes, but must be [blocks, " +
                                std::to_string(heads) + ", 128, " + std::to_string(bytes) +
                                "], dense within a block of a head.");
  }
}

tamis::AttentionLane attention_lane(const Cache& codes, const std::optional<Cache>& scales, const std::string& format,
                                    std::size_t heads, std::size_t dim, std::size_t& blocks) {
  const bool exact = format == "nvfp4 exact", nvfp4 = exact || format == "nvfp4 e4m3";
  tamis::AttentionLane lane = {};
  std::size_t bytes = dim / 2;
  if (format == "float32") {
    lane.format = tamis::LaneFormat::kFloat32, bytes = 4 * dim;
  } else if (format == "bfloat16") {
    lane.format = tamis::LaneFormat::kBfloat16, bytes = 2 * dim;
  } else if (format == "fp8") {
    lane.format = tamis::LaneFormat::kFp8, bytes = dim;
  } else if (nvfp4) {
    lane.format = tamis::LaneFormat::kNvfp4;
  } else {
    throw std::invalid_argument("format is '" + format +
                                "', but must be float32, bfloat16, fp8, nvfp4 exact or nvfp4 e4m3.");
  }
  if (nvfp4 != scales.has_value()) throw std::invalid_argument("nvfp4 lanes have scales and no others have.");
  check_cache(codes, heads, bytes, "codes");
  lane.codes = codes.data(), lane.block_stride = codes.stride(0), lane.head_stride = codes.stride(1);
  blocks = codes.shape(0);
  if (nvfp4) {
    check_cache(*scales, heads, dim / tamis::kGroupValues, "scales");
    if (scales->shape(0) < blocks) blocks = scales->shape(0);
    lane.scales = scales->data();
    lane.scale_block_stride = scales->stride(0), lane.scale_head_stride = scales->stride(1);
    lane.table = tamis::nvfp4_table(exact ? tamis::Contract::kExact : tamis::Contract::kE4m3);
  }
  return lane;
}

void sparse_attention(Dense<const float, 3> query, Cache k_codes, std::optional<Cache> k_scales,
                      const std::string& k_format, Cache v_codes, std::optional<Cache> v_scales,
                      const std::string& v_format, Dense<const std::int64_t, 3> selection,
                      nb::ndarray<const std::int64_t, nb::ndim<2>, nb::device::cpu> tables,
                      Dense<const std::int64_t, 1> positions, float scale, Dense<float, 3> out, int threads,
                      const std::string& path) {
  tamis::AttentionCall call = {};
  call.tokens = selection.shape(0), call.kv_heads = selection.shape(1), call.slots = selection.shape(2);
  call.dim = query.shape(2);
  const std::size_t heads = query.shape(1), width = tables.shape(1);
  if (call.dim == 0 || call.dim % tamis::kGroupValues || call.dim > tamis::kMaxAttentionDim) {
    throw std::invalid_argument("dim is " + std::to_string(call.dim) + ", but must be a multiple of 16, at most 256.");
  }
  if (call.kv_heads == 0 || heads == 0 || heads % call.kv_heads) {
    throw std::invalid_argument(std::to_string(heads) + " query heads do not divide among " +
                                std::to_string(call.kv_heads) + " KV heads.");
  }
  if (query.shape(0) != call.tokens || tables.shape(0) != call.tokens || positions.shape(0) != call.tokens ||
      out.shape(0) != call.tokens || out.shape(1) != heads || out.shape(2) != call.dim) {
    throw std::invalid_argument("q, block_tables, positions and out must have selection's " +
                                std::to_string(call.tokens) + " tokens, and out q's shape.");
  }
  if (width > 1 && tables.stride(1) != 1) throw std::invalid_argument("block_tables must be dense within a token.");
  call.group = heads / call.kv_heads;
  std::size_t k_blocks = 0, v_blocks = 0;
  call.keys = attention_lane(k_codes, k_scales, k_format, call.kv_heads, call.dim, k_blocks);
  call.values = attention_lane(v_codes, v_scales, v_format, call.kv_heads, call.dim, v_blocks);
  const std::int64_t pool = static_cast<std::int64_t>(k_blocks < v_blocks ? k_blocks : v_blocks);
  call.query = query.data(), call.selection = selection.data(), call.positions = positions.data();
  call.tables = tables.data(), call.table_stride = tables.stride(0);
  call.scale = scale, call.out = out.data();
  for (std::size_t i = 0; i < call.tokens * call.kv_heads * call.slots; ++i) {
    const std::int64_t index = call.selection[i];
    if (index < 0) continue;
    const std::int64_t token = static_cast<std::int64_t>(i / (call.kv_heads * call.slots));
    if (index >= static_cast<std::int64_t>(width) || index * 128 > call.positions[token]) {
      throw std::invalid_argument("selection has block " + std::to_string(index) + " for token " +
                                  std::to_string(token) + " at position " + std::to_string(call.positions[token]) +
                                  " with a table of " + std::to_string(width) + " blocks.");
    }
    const std::int64_t block = call.tables[token * call.table_stride + index];
    if (block < 0 || block >= pool) {
      throw std::invalid_argument("block_tables[" + std::to_string(token) + ", " + std::to_string(index) + "] is " +
                                  std::to_string(block) + ", but the pool has " + std::to_string(pool) + " blocks.");
    }
  }
  const tamis::AttentionLoops* loops = &tamis::kAttentionScalar;
  [[maybe_unused]] const bool avx2 = use_avx2(path);
#if TAMIS_WITH_AVX2
  if (avx2) loops = &tamis::kAttentionAvx2;
#endif
  nb::gil_scoped_release release;
  tamis::sparse_attention(*loops, call, threads);
}

tamis::KeyFormat key_format(const std::string& name) {
  if (name == "float32") return tamis::KeyFormat::kFloat32;
  if (name == "bfloat16") return tamis::KeyFormat::kBfloat16;
  if (name == "fp8") return tamis::KeyFormat::kFp8;
  if (name == "nvfp4 exact") return tamis::KeyFormat::kNvfp4Exact;
  if (name == "nvfp4 e4m3") return tamis::KeyFormat::kNvfp4E4m3;
  throw std::invalid_argument("format is '" + name + "', but must be float32, bfloat16, fp8, nvfp4 exact or "
                              "nvfp4 e4m3.");
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
  [[maybe_unused]] const bool avx2 = use_avx2(path);
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
  m.def("linear", &linear, nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("out").noconvert(),
        nb::arg("threads"), nb::arg("path") = "auto");
  // Its caller in tamis/kernels/moe has compared all shapes.
  m.def("mixture", &mixture, nb::arg("x").noconvert(), nb::arg("experts").noconvert(), nb::arg("weights").noconvert(),
        nb::arg("gate_up").noconvert(), nb::arg("down").noconvert(), nb::arg("shared_gate_up").noconvert(),
        nb::arg("shared_down").noconvert(), nb::arg("out").noconvert(), nb::arg("scale"), nb::arg("alpha"),
        nb::arg("limit"), nb::arg("threads"), nb::arg("path") = "auto");
  m.def("sparse_attention", &sparse_attention, nb::arg("query").noconvert(), nb::arg("k_codes").noconvert(),
        nb::arg("k_scales").noconvert().none(), nb::arg("k_format"), nb::arg("v_codes").noconvert(),
        nb::arg("v_scales").noconvert().none(), nb::arg("v_format"), nb::arg("selection").noconvert(),
        nb::arg("block_tables").noconvert(), nb::arg("positions").noconvert(), nb::arg("scale"),
        nb::arg("out").noconvert(), nb::arg("threads"), nb::arg("path") = "auto");
  m.def("index_scores", &index_scores, nb::arg("query").noconvert(), nb::arg("codes").noconvert(),
        nb::arg("scales").noconvert().none(), nb::arg("block_table").noconvert(), nb::arg("positions").noconvert(),
        nb::arg("out").noconvert(), nb::arg("format"), nb::arg("threads"), nb::arg("path") = "auto");
  m.def("select_blocks", &select_blocks, nb::arg("scores").noconvert(), nb::arg("positions").noconvert(),
        nb::arg("out").noconvert(), nb::arg("init"), nb::arg("local"), nb::arg("threads"));
}
