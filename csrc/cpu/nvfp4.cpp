#include "nvfp4.h"

#include <array>
#include <cmath>
#include <limits>

namespace tamis {

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

const float* e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (unsigned byte = 0; byte < 256; ++byte) values[byte] = decode_e4m3(byte);
    return values;
  }();
  return table.data();
}

namespace {

constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// Nearest E4M3 value, saturating: the even byte wins a tie. Bytes 0 to 126 ascend.
float round_to_e4m3(float value) {
  if (std::isnan(value)) return value;
  const float magnitude = std::fabs(value);
  unsigned below = 0;
  while (below < 126u && decode_e4m3(below + 1u) <= magnitude) ++below;
  if (below < 126u) {
    const float down = magnitude - decode_e4m3(below), up = decode_e4m3(below + 1u) - magnitude;
    if (up < down || (up == down && (below & 1u))) ++below;
  }
  return std::copysign(decode_e4m3(below), value);
}

using Table = std::array<float, 256 * 8>;

Table make_table(Contract contract) {
  Table table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const float scale = decode_e4m3(byte);
    for (unsigned code = 0; code < 8; ++code) {
      const float value = kMagnitudes[code] * scale;
      table[byte * 8 + code] = contract == Contract::kExact ? value : round_to_e4m3(value);
    }
  }
  return table;
}

}  // namespace

const float* nvfp4_table(Contract contract) {
  static const Table exact = make_table(Contract::kExact), e4m3 = make_table(Contract::kE4m3);
  return contract == Contract::kExact ? exact.data() : e4m3.data();
}

void nvfp4_unpack_scalar(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups,
                         const float* table) {
  for (std::size_t g = 0; g < groups; ++g) {
    const float* row = table + std::size_t{scales[g]} * 8;
    for (std::size_t i = 0; i < kGroupBytes; ++i) {
      const unsigned byte = codes[g * kGroupBytes + i];
      const float even = row[byte & 7u], odd = row[(byte >> 4) & 7u];
      out[g * kGroupValues + 2 * i] = (byte & 8u) ? -even : even;
      out[g * kGroupValues + 2 * i + 1] = (byte & 0x80u) ? -odd : odd;
    }
  }
}

}  // namespace tamis
