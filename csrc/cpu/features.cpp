#include "features.h"

#include <cstdint>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TAMIS_X86 1
#include <cpuid.h>
#else
#define TAMIS_X86 0
#endif

namespace tamis {
namespace {

struct Features {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512vbmi = false, avx512vnni = false, avx512bf16 = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
};

bool bit(std::uint32_t word, int index) { return (word >> index) & 1u; }

Features detect() {
  Features f;
#if TAMIS_X86
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;  // without OSXSAVE no wide register is saved
  const std::uint32_t leaf1_c = c;

  std::uint32_t xcr0 = 0, xcr0_high = 0;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  const bool ymm = (xcr0 & 0x6u) == 0x6u;             // XMM, YMM
  const bool zmm = ymm && (xcr0 & 0xE0u) == 0xE0u;    // opmask, upper ZMM0-15, ZMM16-31
  const bool tiles = (xcr0 & 0x60000u) == 0x60000u;   // tile configuration and data

  std::uint32_t b7 = 0, c7 = 0, d7 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return f;
  const std::uint32_t max_subleaf = a;
  f.fma = ymm && bit(leaf1_c, 12);
  f.f16c = ymm && bit(leaf1_c, 29);
  f.avx2 = ymm && bit(b7, 5);
  f.avx512f = zmm && bit(b7, 16);
  f.avx512bw = zmm && bit(b7, 30);
  f.avx512vl = zmm && bit(b7, 31);
  f.avx512vbmi = zmm && bit(c7, 1);
  f.avx512vnni = zmm && bit(c7, 11);
  f.amx_bf16 = tiles && bit(d7, 22);
  f.amx_tile = tiles && bit(d7, 24);
  f.amx_int8 = tiles && bit(d7, 25);
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512bf16 = zmm && bit(a, 5);
#endif
  return f;
}

const Features& features() {
  static const Features detected = detect();
  return detected;
}

}  // namespace

std::vector<std::pair<std::string, bool>> cpu_features() {
  const Features& f = features();
  return {
      {"avx2", f.avx2},
      {"fma", f.fma},
      {"f16c", f.f16c},
      {"avx512f", f.avx512f},
      {"avx512bw", f.avx512bw},
      {"avx512vl", f.avx512vl},
      {"avx512vbmi", f.avx512vbmi},
      {"avx512vnni", f.avx512vnni},
      {"avx512bf16", f.avx512bf16},
      {"amx_tile", f.amx_tile},
      {"amx_int8", f.amx_int8},
      {"amx_bf16", f.amx_bf16},
  };
}

bool has_avx2() { return features().avx2 && features().fma && features().f16c; }

}  // namespace tamis
