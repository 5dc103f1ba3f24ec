// The Python face of the C++ kernels: checks, dispatch by CPU, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "features.h"
#include "mixture.h"
#include "nvfp4.h"
#include "parallel.h"
#include "product.h"

namespace nb = nanobind;

namespace {

template <typename T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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
  const bool usable = TAMIS_WITH_AVX2 && tamis::has_avx2();
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

// The kernels below take addresses: their callers in tamis/kernels have checked dtypes, shapes and layout, and a decode
// step makes so many calls that converting tensors would cost as much as the work.
using Address = std::uintptr_t;

const float* floats(Address address) { return reinterpret_cast<const float*>(address); }

tamis::Product product_of(const std::string& path) {
  [[maybe_unused]] const bool avx2 = tamis::has_avx2_fma() && use_avx2(path);
#if TAMIS_WITH_AVX2
  if (avx2) return tamis::product_avx2;
#endif
  return tamis::product_scalar;
}

void linear(Address x, std::size_t count, std::size_t k, Address w, std::size_t n, Address out, int threads,
            const std::string& path) {
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
      from[i] = floats(x) + (row + i) * k;
      to[i] = reinterpret_cast<float*>(out) + (row + i) * n + column;
    }
    product(from.data(), rows, floats(w) + column * k, columns, k, to.data());
  });
}

void mixture(Address x, Address experts, Address weights, Address gate_up, Address down, Address shared_gate_up,
             Address shared_down, Address out, const std::vector<std::size_t>& sizes, const std::vector<float>& factors,
             int threads, const std::string& path) {
  if (sizes.size() != 6 || factors.size() != 3) throw std::invalid_argument("6 sizes and 3 factors are needed.");
  tamis::Mixture m{};
  m.x = floats(x);
  m.experts = reinterpret_cast<const std::int64_t*>(experts);
  m.weights = floats(weights);
  m.gate_up = floats(gate_up);
  m.down = floats(down);
  m.shared_gate_up = floats(shared_gate_up);
  m.shared_down = floats(shared_down);
  m.out = reinterpret_cast<float*>(out);
  m.tokens = sizes[0], m.chosen = sizes[1], m.num_experts = sizes[2];
  m.hidden = sizes[3], m.inner = sizes[4], m.shared = sizes[5];
  m.scale = factors[0], m.alpha = factors[1], m.limit = factors[2];
  const tamis::Product product = product_of(path);
  nb::gil_scoped_release release;
  tamis::mixture(m, product, threads);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "C++ kernels of Tamis; tamis.kernels.cpu_extension is their only caller.";
  m.def("build_info", &build_info);
  m.def("cpu_features", &cpu_features);
  m.def("nvfp4_unpack", &nvfp4_unpack, nb::arg("codes").noconvert(), nb::arg("scales").noconvert(),
        nb::arg("out").noconvert(), nb::arg("path") = "auto", nb::arg("contract") = "exact");
  m.def("linear", &linear);
  m.def("mixture", &mixture);
}
