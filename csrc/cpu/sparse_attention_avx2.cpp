#include <immintrin.h>

#include "nvfp4.h"
#include "sparse_attention.h"

namespace tamis {
namespace {

inline __m256 of_e4m3(const std::uint8_t* bytes) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  const __m256i low = _mm256_and_si256(wide, _mm256_set1_epi32(0x7F));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)), 24);
  const __m256 normal = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(low, 20), _mm256_set1_epi32(120 << 23)));
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(low), _mm256_set1_ps(0.001953125f));
  const __m256 is_small = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), low));
  const __m256 is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(low, _mm256_set1_epi32(0x7F)));
  __m256 value = _mm256_blendv_ps(normal, small, is_small);
  value = _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), is_nan);
  return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
}

void unpack(const AttentionLane& lane, const std::uint8_t* codes, const std::uint8_t* scales, std::size_t vectors,
            std::size_t dim, float* out) {
  const std::size_t count = vectors * dim;
  switch (lane.format) {
    case LaneFormat::kFloat32:
      for (std::size_t i = 0; i < count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_loadu_ps(reinterpret_cast<const float*>(codes + 4 * i)));
      }
      return;
    case LaneFormat::kBfloat16:
      for (std::size_t i = 0; i < count; i += 8) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 2 * i));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
      }
      return;
    case LaneFormat::kFp8:
      for (std::size_t i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, of_e4m3(codes + i));
      return;
    case LaneFormat::kNvfp4:
      nvfp4_unpack_avx2(codes, scales, out, count / kGroupValues, lane.table);
  }
}

void transpose(const float* in, std::size_t dim, float* out) {
  for (std::size_t d = 0; d < dim; d += 8) {
    for (std::size_t key = 0; key < kAttentionBlock; key += 8) {
      __m256 r[8], t[8];
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + (key + i) * dim + d);
      for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
      }
      for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
      }
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(out + (d + i) * kAttentionBlock + key, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (d + i + 4) * kAttentionBlock + key, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
      }
    }
  }
}

// R rows by 16 columns: 2 · R sums, two columns and a broadcast stay within 16 registers up to R = 6.
template <int R>
inline void product_rows(const float* const* a, const float* b, float* const* c, const float* keep, std::size_t depth,
                         std::size_t width) {
  for (std::size_t n = 0; n < width; n += 16) {
    __m256 low[R], high[R];
    for (int r = 0; r < R; ++r) {
      if (keep) {
        low[r] = _mm256_mul_ps(_mm256_loadu_ps(c[r] + n), _mm256_set1_ps(keep[r]));
        high[r] = _mm256_mul_ps(_mm256_loadu_ps(c[r] + n + 8), _mm256_set1_ps(keep[r]));
      } else {
        low[r] = high[r] = _mm256_setzero_ps();
      }
    }
    for (std::size_t d = 0; d < depth; ++d) {
      const __m256 left = _mm256_loadu_ps(b + d * width + n), right = _mm256_loadu_ps(b + d * width + n + 8);
      for (int r = 0; r < R; ++r) {
        const __m256 x = _mm256_broadcast_ss(a[r] + d);
        low[r] = _mm256_fmadd_ps(x, left, low[r]);
        high[r] = _mm256_fmadd_ps(x, right, high[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      _mm256_storeu_ps(c[r] + n, low[r]);
      _mm256_storeu_ps(c[r] + n + 8, high[r]);
    }
  }
}

void product(const float* const* a, const float* b, float* const* c, const float* keep, std::size_t rows,
             std::size_t depth, std::size_t width) {
  while (rows) {
    // 4 and 4 rather than 6 and 2: short blocks wait for their sums.
    const std::size_t take = rows == 8 ? 4 : rows == 7 ? 4 : rows < 6 ? rows : 6;
    switch (take) {
      case 1: product_rows<1>(a, b, c, keep, depth, width); break;
      case 2: product_rows<2>(a, b, c, keep, depth, width); break;
      case 3: product_rows<3>(a, b, c, keep, depth, width); break;
      case 4: product_rows<4>(a, b, c, keep, depth, width); break;
      case 5: product_rows<5>(a, b, c, keep, depth, width); break;
      default: product_rows<6>(a, b, c, keep, depth, width);
    }
    a += take, c += take, rows -= take;
    if (keep) keep += take;
  }
}

// As in sparse_attention.cpp, eight at a time.
inline __m256 exp_of(__m256 x) {
  const __m256 least = _mm256_set1_ps(-87.0f), shift = _mm256_set1_ps(12582912.0f);
  const __m256 bounded = _mm256_max_ps(least, x);  // the second operand where one is NaN
  const __m256 shifted = _mm256_fmadd_ps(bounded, _mm256_set1_ps(1.44269504f), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), bounded);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
  __m256 p = _mm256_set1_ps(1.98412698e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.38888889e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33333333e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16666667e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666667e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23),
                                         _mm256_set1_epi32(127 << 23));
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), p);
}

float softmax(float* scores, std::size_t visible, float scale, float* peak, float* mass) {
  const __m256 infinity = _mm256_set1_ps(-__builtin_inff()), factor = _mm256_set1_ps(scale);
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(visible));
  __m256i key = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 highest = _mm256_set1_ps(*peak);
  for (std::size_t i = 0; i < kAttentionBlock; i += 8) {
    __m256 score = _mm256_mul_ps(_mm256_loadu_ps(scores + i), factor);
    score = _mm256_blendv_ps(infinity, score, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, key)));
    key = _mm256_add_epi32(key, _mm256_set1_epi32(8));
    _mm256_storeu_ps(scores + i, score);
    highest = _mm256_max_ps(score, highest);
  }
  // A NaN score may miss the maximum; its own weight is NaN then, and with it the sum.
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(highest), _mm256_extractf128_ps(highest, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  const float high = _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  const __m256 base = _mm256_set1_ps(high);
  const float keep = _mm256_cvtss_f32(exp_of(_mm256_sub_ps(_mm256_set1_ps(*peak), base)));
  __m256 sum = _mm256_setzero_ps();
  for (std::size_t i = 0; i < kAttentionBlock; i += 8) {
    const __m256 weight = exp_of(_mm256_sub_ps(_mm256_loadu_ps(scores + i), base));
    _mm256_storeu_ps(scores + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  __m128 lanes = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  lanes = _mm_add_ps(lanes, _mm_movehl_ps(lanes, lanes));
  lanes = _mm_add_ss(lanes, _mm_shuffle_ps(lanes, lanes, 1));
  *mass = *mass * keep + _mm_cvtss_f32(lanes);
  *peak = high;
  return keep;
}

}  // namespace

const AttentionLoops kAttentionAvx2 = {unpack, transpose, product, softmax};

}  // namespace tamis
