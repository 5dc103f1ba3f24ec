// NVFP4 → fp32: value = e2m1(code) · e4m3(scale), exact in fp32 (at most 2 + 4 significant bits).
//
// A group is 16 values: 8 bytes of codes (the low nibble is the even value) and one E4M3 scale byte. No global scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

constexpr std::size_t kGroupValues = 16;
constexpr std::size_t kGroupBytes = 8;

// E2M1 values by code: the low three bits are the magnitude, bit 3 is the sign.
extern const float kE2m1[16];
// All 256 E4M3 (fn) values: no infinities, 0x7f and 0xff are NaN.
extern const float* const kE4m3;

// Unpack `groups` groups: codes [groups · 8], scales [groups], out [groups · 16]. NaN scales give NaN values;
// code 8 gives −0.
void nvfp4_unpack_scalar(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups);
void nvfp4_unpack_avx2(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups);

}  // namespace tamis
