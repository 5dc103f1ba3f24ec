#include <immintrin.h>

#include "product.h"

namespace tamis {
namespace {

// Weight rows that stay in the first-level cache while all rows of x pass by.
constexpr std::size_t kPanelBytes = 24 * 1024;

inline float sum(__m256 lanes) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline __m256i tail_mask(std::size_t left) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), lane);
}

// R rows of x times C rows of w: R * C sums at once, enough of them to hide the latency of a fused multiply-add.
template <int R, int C>
inline void tile(const float* const* x, const float* w, std::size_t k, float* const* out, std::size_t column) {
  __m256 acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = _mm256_setzero_ps();
  }
  std::size_t at = 0;
  for (; at + 8 <= k; at += 8) {
    __m256 weight[C];
    for (int c = 0; c < C; ++c) weight[c] = _mm256_loadu_ps(w + static_cast<std::size_t>(c) * k + at);
    for (int r = 0; r < R; ++r) {
      const __m256 value = _mm256_loadu_ps(x[r] + at);
      for (int c = 0; c < C; ++c) acc[r][c] = _mm256_fmadd_ps(value, weight[c], acc[r][c]);
    }
  }
  if (at < k) {
    const __m256i mask = tail_mask(k - at);
    for (int c = 0; c < C; ++c) {
      const __m256 weight = _mm256_maskload_ps(w + static_cast<std::size_t>(c) * k + at, mask);
      // Masked lanes add 0 * 0, which leaves a sum as it is.
      for (int r = 0; r < R; ++r) {
        acc[r][c] = _mm256_fmadd_ps(_mm256_maskload_ps(x[r] + at, mask), weight, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) out[r][column + static_cast<std::size_t>(c)] = sum(acc[r][c]);
  }
}

template <int R, int C>
inline void panel(const float* const* x, const float* w, std::size_t first, std::size_t last, std::size_t k,
                  float* const* out) {
  std::size_t n = first;
  for (; n + C <= last; n += C) tile<R, C>(x, w + n * k, k, out, n);
  for (; n < last; ++n) tile<R, 1>(x, w + n * k, k, out, n);
}

}  // namespace

void product_avx2(const float* const* x, std::size_t count, const float* w, std::size_t n, std::size_t k,
                  float* const* out) {
  std::size_t step = kPanelBytes / (k * sizeof(float) + 1) / 12 * 12;
  if (step < 12) step = 12;
  if (count <= 4) step = n;
  for (std::size_t first = 0; first < n; first += step) {
    const std::size_t last = first + step < n ? first + step : n;
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) panel<4, 3>(x + i, w, first, last, k, out + i);
    switch (count - i) {
      case 3: panel<3, 4>(x + i, w, first, last, k, out + i); break;
      case 2: panel<2, 4>(x + i, w, first, last, k, out + i); break;
      case 1: panel<1, 8>(x + i, w, first, last, k, out + i); break;
      default: break;
    }
  }
}

}  // namespace tamis
