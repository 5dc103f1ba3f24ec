// NVFP4 → fp32. Two contracts: "exact" is e2m1(code) · e4m3(scale), exact in fp32 (at most 2 + 4 significant bits);
// "e4m3" is the same saturated to ±448 and rounded to E4M3, half to even. Either way a value is one of eight magnitudes
// that the scale byte decides, so both are a table of 256 rows of eight, and code bit 3 the sign.
//
// A group is 16 values: 8 bytes of codes (the low nibble is the even value) and one E4M3 scale byte. No global scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

constexpr std::size_t kGroupValues = 16;
constexpr std::size_t kGroupBytes = 8;

// The value of an E4M3 byte, and of each of them in a table [256].
float decode_e4m3(unsigned byte);
const float* e4m3_table();

enum class Contract { kExact, kE4m3 };

// [256 scale bytes][8 magnitude codes]; negative scales give negative entries, NaN scales NaN ones.
const float* nvfp4_table(Contract contract);

// Unpack `groups` groups: codes [groups · 8], scales [groups], out [groups · 16], with a table
// from above. NaN scales give NaN values; code 8 gives −0.
void nvfp4_unpack_scalar(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups,
                         const float* table);
void nvfp4_unpack_avx2(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups,
                       const float* table);

}  // namespace tamis
