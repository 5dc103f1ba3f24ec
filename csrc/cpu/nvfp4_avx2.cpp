#include "nvfp4.h"

#include <immintrin.h>

namespace tamis {
namespace {

// Eight 4-bit codes in 32-bit lanes → values: the permute looks up by the low three bits, bit 3 turns the sign.
inline __m256 value_of(__m256i code, __m256 magnitudes) {
  const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, code);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
  return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
}

}  // namespace

void nvfp4_unpack_avx2(const std::uint8_t* codes, const std::uint8_t* scales, float* out, std::size_t groups,
                       const float* table) {
  for (std::size_t g = 0; g < groups; ++g) {
    const __m256 magnitudes = _mm256_loadu_ps(table + std::size_t{scales[g]} * 8);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + g * kGroupBytes));
    const __m256i wide = _mm256_cvtepu8_epi32(bytes);
    const __m256 even = value_of(wide, magnitudes);
    const __m256 odd = value_of(_mm256_srli_epi32(wide, 4), magnitudes);
    // unpack works inside 128-bit halves, so values 0-3 and 8-11 come out together: swap the middle quarters.
    const __m256 low = _mm256_unpacklo_ps(even, odd);
    const __m256 high = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(out + g * kGroupValues, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(out + g * kGroupValues + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

}  // namespace tamis
