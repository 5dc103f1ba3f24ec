// The Python face of the C++ kernels: checks, dispatch by CPU, no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "features.h"
#include "nvfp4.h"

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

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "C++ kernels of Tamis; tamis.kernels.cpu_extension is their only caller.";
  m.def("build_info", &build_info);
  m.def("cpu_features", &cpu_features);
  m.def("nvfp4_unpack", &nvfp4_unpack, nb::arg("codes").noconvert(), nb::arg("scales").noconvert(),
        nb::arg("out").noconvert(), nb::arg("path") = "auto", nb::arg("contract") = "exact");
}
