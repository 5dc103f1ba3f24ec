#include <immintrin.h>

#include "index_score.h"

namespace tamis {
namespace {

constexpr std::size_t kLanes = 8;

// Eight values of one key, dims d to d + 7 (d a multiple of 8).
template <KeyFormat format>
inline __m256 load8(const KeyBlock& block, std::size_t key, std::size_t d);

template <>
inline __m256 load8<KeyFormat::kFloat32>(const KeyBlock& block, std::size_t key, std::size_t d) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(block.codes + (key * block.dim + d) * 4));
}

template <>
inline __m256 load8<KeyFormat::kBfloat16>(const KeyBlock& block, std::size_t key, std::size_t d) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.codes + (key * block.dim + d) * 2));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline void transpose8(__m256 (&r)[8]) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  __m256 u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// 16 keys from `first` on → panel [dim][16].
template <KeyFormat format>
void unpack_panel(const KeyBlock& block, std::size_t first, float* panel) {
  for (std::size_t half = 0; half < kPanelKeys; half += kLanes) {
    for (std::size_t d = 0; d < block.dim; d += kLanes) {
      __m256 rows[8];
      for (std::size_t i = 0; i < 8; ++i) rows[i] = load8<format>(block, first + half + i, d);
      transpose8(rows);
      for (std::size_t i = 0; i < 8; ++i) _mm256_store_ps(panel + (d + i) * kPanelKeys + half, rows[i]);
    }
  }
}

// 16 dims of a key as E4M3 bytes.
template <KeyFormat format>
inline __m128i e4m3_of(const KeyBlock& block, std::size_t key, std::size_t d) {
  const std::size_t at = key * block.dim + d;
  if (format == KeyFormat::kFp8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.codes + at));
  const std::uint8_t* values = block.e4m3_bytes + std::size_t{block.scales[at / 16]} * 16;
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.codes + at / 2));
  const __m128i even = _mm_and_si128(pairs, _mm_set1_epi8(15));
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), _mm_set1_epi8(15));
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)), _mm_unpacklo_epi8(even, odd));
}

// Transposes 8 × 8 16-bit values in each half of eight vectors.
inline void transpose8_epi16(__m256i (&r)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[i + 4] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    b[i + 2] = _mm256_unpacklo_epi32(a[i + 2], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi32(a[i + 2], a[i + 3]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    r[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    r[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
}

// 16 E4M3 bytes, split into magnitudes << 7 and signs << 15, → 16 values. E4M3 is a half whose exponent is a bit
// shorter and its bias smaller by 8: shifted into one and scaled by 2^8 it is exact, subnormals too and whatever the
// thread's denormal mode. Only 0x7F and 0xFF, which are NaN, would read as 480.
inline void store_e4m3(__m256i magnitudes, __m256i signs, float* out) {
  const __m256i nan = _mm256_cmpeq_epi16(magnitudes, _mm256_set1_epi16(0x7F << 7));
  const __m256i halves = _mm256_or_si256(_mm256_or_si256(magnitudes, signs), nan);
  const __m256 bias = _mm256_set1_ps(256.0f);
  _mm256_store_ps(out, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), bias));
  _mm256_store_ps(out + kLanes, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), bias));
}

// Formats that are E4M3 bytes or a table of them: 16 keys are put side by side as pairs of bytes, a quarter of the
// shuffles that values take.
template <KeyFormat format>
void unpack_e4m3_panel(const KeyBlock& block, std::size_t first, float* panel) {
  const __m256i magnitude = _mm256_set1_epi16(0x7F << 7), sign = _mm256_set1_epi16(INT16_MIN);
  for (std::size_t d = 0; d < block.dim; d += 16) {
    __m256i pairs[8];
    for (std::size_t i = 0; i < 8; ++i) {
      pairs[i] = _mm256_set_m128i(e4m3_of<format>(block, first + i + 8, d), e4m3_of<format>(block, first + i, d));
    }
    transpose8_epi16(pairs);
    for (std::size_t i = 0; i < 8; ++i) {
      float* to = panel + (d + 2 * i) * kPanelKeys;
      const __m256i even = _mm256_slli_epi16(pairs[i], 8), odd = pairs[i];
      store_e4m3(_mm256_and_si256(_mm256_srli_epi16(even, 1), magnitude), _mm256_and_si256(even, sign), to);
      store_e4m3(_mm256_and_si256(_mm256_srli_epi16(odd, 1), magnitude), _mm256_and_si256(odd, sign), to + kPanelKeys);
    }
  }
}

// Eight bytes of codes of keys 0 and 1 in the low half, of keys 4 and 5 in the high one.
inline __m256 code_words(const std::uint8_t* codes, std::size_t key_bytes) {
  const auto pair = [&](std::size_t key) {
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + key * key_bytes));
    const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + (key + 1) * key_bytes));
    return _mm_unpacklo_epi64(low, high);
  };
  return _mm256_castsi256_ps(_mm256_set_m128i(pair(4), pair(0)));
}

// Byte `at` of each lane, signed, times `factor`.
template <int at>
inline __m256 byte_value(__m256i bytes, __m256 factor) {
  const __m256i value = _mm256_srai_epi32(at == 3 ? bytes : _mm256_slli_epi32(bytes, 24 - 8 * at), 24);
  return _mm256_mul_ps(_mm256_cvtepi32_ps(value), factor);
}

// e2m1 · scale needs no table of the scale, so codes turn into values after eight keys' codes have been put side by
// side, at an eighth of the shuffles: 32 bits of codes a lane, looked up as doubled integers (2 · 6 = 12 fits a byte).
// Code 8 gives 0 where the table gives −0; a chain of sums that begins at +0 cannot tell.
void unpack_nvfp4_panel(const KeyBlock& block, std::size_t first, float* panel) {
  const __m256i doubled = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                           0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m256i low_nibbles = _mm256_set1_epi8(15);
  const std::size_t groups = block.dim / 16, key_bytes = block.dim / 2;
  for (std::size_t half = 0; half < kPanelKeys; half += kLanes) {
    const std::uint8_t* codes = block.codes + (first + half) * key_bytes;
    const std::uint8_t* scales = block.scales + (first + half) * groups;
    for (std::size_t g = 0; g < groups; ++g) {
      // Code 1 is 0.5: the table's entry is what a doubled value is to be multiplied with.
      const auto factor_of = [&](std::size_t key) {
        return block.table[std::size_t{scales[key * groups + g]} * 8 + 1];
      };
      const __m256 factor = _mm256_setr_ps(factor_of(0), factor_of(1), factor_of(2), factor_of(3), factor_of(4),
                                           factor_of(5), factor_of(6), factor_of(7));
      const __m256 keys_01_45 = code_words(codes + g * 8, key_bytes);
      const __m256 keys_23_67 = code_words(codes + g * 8 + 2 * key_bytes, key_bytes);
      const __m256i words[2] = {_mm256_castps_si256(_mm256_shuffle_ps(keys_01_45, keys_23_67, 0x88)),
                                _mm256_castps_si256(_mm256_shuffle_ps(keys_01_45, keys_23_67, 0xDD))};
      for (std::size_t w = 0; w < 2; ++w) {
        float* to = panel + (g * 16 + w * 8) * kPanelKeys + half;
        const __m256i even = _mm256_shuffle_epi8(doubled, _mm256_and_si256(words[w], low_nibbles));
        const __m256i odd =
            _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi32(words[w], 4), low_nibbles));
        _mm256_store_ps(to, byte_value<0>(even, factor));
        _mm256_store_ps(to + kPanelKeys, byte_value<0>(odd, factor));
        _mm256_store_ps(to + 2 * kPanelKeys, byte_value<1>(even, factor));
        _mm256_store_ps(to + 3 * kPanelKeys, byte_value<1>(odd, factor));
        _mm256_store_ps(to + 4 * kPanelKeys, byte_value<2>(even, factor));
        _mm256_store_ps(to + 5 * kPanelKeys, byte_value<2>(odd, factor));
        _mm256_store_ps(to + 6 * kPanelKeys, byte_value<3>(even, factor));
        _mm256_store_ps(to + 7 * kPanelKeys, byte_value<3>(odd, factor));
      }
    }
  }
}

void unpack(const KeyBlock& block, std::size_t first, float* panel) {
  switch (block.format) {
    case KeyFormat::kFloat32: return unpack_panel<KeyFormat::kFloat32>(block, first, panel);
    case KeyFormat::kBfloat16: return unpack_panel<KeyFormat::kBfloat16>(block, first, panel);
    case KeyFormat::kFp8: return unpack_e4m3_panel<KeyFormat::kFp8>(block, first, panel);
    case KeyFormat::kNvfp4Exact: return unpack_nvfp4_panel(block, first, panel);
    case KeyFormat::kNvfp4E4m3: return unpack_e4m3_panel<KeyFormat::kNvfp4E4m3>(block, first, panel);
  }
}

// What a row has seen so far, by lanes: the largest dot, and all ones where a dot was NaN (which a maximum forgets).
struct Best {
  __m256 largest, nan;
};

inline void take(Best& best, __m256 dots) {
  best.nan = _mm256_or_ps(best.nan, _mm256_cmp_ps(dots, dots, _CMP_UNORD_Q));
  best.largest = _mm256_max_ps(best.largest, dots);
}

inline float reduce(const Best& best) {
  if (_mm256_movemask_ps(best.nan)) return __builtin_nanf("");
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(best.largest), _mm256_extractf128_ps(best.largest, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// Dots of `rows` query rows with `panels` panels, in registers: rows · panels · 2 independent chains, of which the CPU
// needs about 8 to hide the latency of one. The panels begin at key `first`; keys from visible[i] on do not count.
template <int rows, int panels>
inline void score_rows(const float* panel, const float* query, std::size_t dim, const std::int32_t* visible,
                       std::int32_t first, Best* best) {
  constexpr int vectors = panels * 2;
  __m256 dots[rows][vectors];
  for (int i = 0; i < rows; ++i) {
    for (int v = 0; v < vectors; ++v) dots[i][v] = _mm256_setzero_ps();
  }
  for (std::size_t d = 0; d < dim; ++d) {
    __m256 keys[vectors];
    for (int v = 0; v < vectors; ++v) {
      keys[v] = _mm256_load_ps(panel + (static_cast<std::size_t>(v / 2) * dim + d) * kPanelKeys + v % 2 * kLanes);
    }
    for (int i = 0; i < rows; ++i) {
      const __m256 value = _mm256_broadcast_ss(query + static_cast<std::size_t>(i) * dim + d);
      for (int v = 0; v < vectors; ++v) dots[i][v] = _mm256_fmadd_ps(value, keys[v], dots[i][v]);
    }
  }
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int i = 0; i < rows; ++i) {
    const std::int32_t left = visible[i] - first;
    if (left < vectors * static_cast<std::int32_t>(kLanes)) {
      for (int v = 0; v < vectors; ++v) {
        const __m256i left_here = _mm256_set1_epi32(left - v * static_cast<std::int32_t>(kLanes));
        const __m256 seen = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left_here, lane));
        dots[i][v] = _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), dots[i][v], seen);
      }
    }
    for (int v = 0; v < vectors; ++v) take(best[i], dots[i][v]);
  }
}

// All rows with one panel, or with two where that many are there: the last rows of a tile have few chains.
void score_tile(const float* panels, int count, const QueryTile& tile, std::size_t dim, std::int32_t first,
                Best* best) {
  constexpr std::size_t step = 6;
  const std::int32_t second = first + static_cast<std::int32_t>(kPanelKeys);
  const float* next = panels + dim * kPanelKeys;
  std::size_t row = 0;
  for (; row + step <= tile.rows; row += step) {
    const float* query = tile.query + row * dim;
    const std::int32_t* visible = tile.visible + row;
    score_rows<6, 1>(panels, query, dim, visible, first, best + row);
    if (count == 2) score_rows<6, 1>(next, query, dim, visible, second, best + row);
  }
  const float* query = tile.query + row * dim;
  const std::int32_t* visible = tile.visible + row;
  best += row;
  switch ((tile.rows - row) * 2 + static_cast<std::size_t>(count - 1)) {
    case 2: return score_rows<1, 1>(panels, query, dim, visible, first, best);
    case 3: return score_rows<1, 2>(panels, query, dim, visible, first, best);
    case 4: return score_rows<2, 1>(panels, query, dim, visible, first, best);
    case 5: return score_rows<2, 2>(panels, query, dim, visible, first, best);
    case 6: return score_rows<3, 1>(panels, query, dim, visible, first, best);
    case 7: return score_rows<3, 2>(panels, query, dim, visible, first, best);
    case 9: score_rows<4, 1>(next, query, dim, visible, second, best); [[fallthrough]];
    case 8: return score_rows<4, 1>(panels, query, dim, visible, first, best);
    case 11: score_rows<5, 1>(next, query, dim, visible, second, best); [[fallthrough]];
    case 10: return score_rows<5, 1>(panels, query, dim, visible, first, best);
    default: return;
  }
}

}  // namespace

void score_block_avx2(const KeyBlock& block, const QueryTile& tile, float* scratch) {
  Best best[kTileRows];
  for (std::size_t i = 0; i < tile.rows; ++i) best[i] = {_mm256_set1_ps(-__builtin_inff()), _mm256_setzero_ps()};
  constexpr std::int32_t width = static_cast<std::int32_t>(kPanelKeys);
  for (std::int32_t first = 0; first < tile.most_visible; first += 2 * width) {
    const int count = tile.most_visible - first > width ? 2 : 1;
    const std::size_t key = static_cast<std::size_t>(first);
    unpack(block, key, scratch);
    if (count == 2) unpack(block, key + kPanelKeys, scratch + block.dim * kPanelKeys);
    score_tile(scratch, count, tile, block.dim, first, best);
  }
  for (std::size_t i = 0; i < tile.rows; ++i) tile.out[i * tile.out_stride] = reduce(best[i]);
}

}  // namespace tamis
