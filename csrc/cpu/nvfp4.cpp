#include "nvfp4.h"

#include <array>
#include <cmath>
#include <limits>

namespace tamis {
namespace {

float decode_e4m3(unsigned byte) {
  const unsigned exponent = (byte >> 3) & 15u, mantissa = byte & 7u;
  float magnitude;
  if (exponent == 15u && mantissa == 7u) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0u) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    magnitude = std::ldexp(static_cast<float>(8u + mantissa), static_cast<int>(exponent) - 10);
  }
  return (byte & 0x80u) ? -magnitude : magnitude;
}

std::array<float, 256> e4m3_table() {
  std::array<float, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = decode_e4m3(byte);
  return table;
}

const std::array<float, 256> kTable = e4m3_table();

}  // namespace

const float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
const float* const kE4m3 = kTable.data();

void nvfp4_unpack_scalar(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups) {
  for (std::size_t g = 0; g < groups; ++g) {
    const float scale = kE4m3[scales[g]];
    for (std::size_t i = 0; i < kGroupBytes; ++i) {
      const unsigned byte = codes[g * kGroupBytes + i];
      out[g * kGroupValues + 2 * i] = kE2m1[byte & 15u] * scale;
      out[g * kGroupValues + 2 * i + 1] = kE2m1[byte >> 4] * scale;
    }
  }
}

}  // namespace tamis
