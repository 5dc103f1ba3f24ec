#include "sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "nvfp4.h"
#include "parallel.h"

namespace tamis {
namespace {

float of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void unpack(const AttentionLane& lane, const std::uint8_t* codes, const std::uint8_t* scales, std::size_t vectors,
            std::size_t dim, float* out) {
  const std::size_t count = vectors * dim;
  switch (lane.format) {
    case LaneFormat::kFloat32:
      std::memcpy(out, codes, count * sizeof(float));
      return;
    case LaneFormat::kBfloat16:
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half;
        std::memcpy(&half, codes + 2 * i, sizeof(half));
        out[i] = of_bits(std::uint32_t{half} << 16);
      }
      return;
    case LaneFormat::kFp8:
      for (std::size_t i = 0; i < count; ++i) out[i] = e4m3_table()[codes[i]];
      return;
    case LaneFormat::kNvfp4:
      nvfp4_unpack_scalar(codes, scales, out, count / kGroupValues, lane.table);
  }
}

void transpose(const float* in, std::size_t dim, float* out) {
  for (std::size_t key = 0; key < kAttentionBlock; ++key) {
    for (std::size_t d = 0; d < dim; ++d) out[d * kAttentionBlock + key] = in[key * dim + d];
  }
}

void product(const float* const* a, const float* b, float* const* c, const float* keep, std::size_t rows,
             std::size_t depth, std::size_t width) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = c[r];
    if (keep) {
      for (std::size_t n = 0; n < width; ++n) row[n] *= keep[r];
    } else {
      std::fill(row, row + width, 0.0f);
    }
    for (std::size_t d = 0; d < depth; ++d) {
      const float x = a[r][d];
      for (std::size_t n = 0; n < width; ++n) row[n] += x * b[d * width + n];
    }
  }
}

// e^x for x ≤ 0 within about an ulp; 0 below −87; NaN stays.
float exp_of(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted = bounded * 1.44269504f + 12582912.0f;  // the integer lands in the low bits of the mantissa
  const float n = shifted - 12582912.0f;
  float r = bounded - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  p *= of_bits((bits_of(shifted) << 23) + (127u << 23));
  return x < -87.0f ? 0.0f : p;
}

float softmax(float* scores, std::size_t visible, float scale, float* peak, float* mass) {
  const float infinity = std::numeric_limits<float>::infinity();
  float high = *peak;
  for (std::size_t i = 0; i < kAttentionBlock; ++i) {
    scores[i] = i < visible ? scores[i] * scale : -infinity;
    if (!(scores[i] <= high)) high = scores[i];  // a NaN stays the highest until the next one: the sum is NaN anyway
  }
  const float keep = exp_of(*peak - high);
  float lanes[8] = {};
  for (std::size_t i = 0; i < kAttentionBlock; ++i) {
    scores[i] = exp_of(scores[i] - high);
    lanes[i % 8] += scores[i];
  }
  for (std::size_t half = 4; half; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  *mass = *mass * keep + lanes[0];
  *peak = high;
  return keep;
}

// A token of a tile that chose a block.
struct Choice {
  std::int64_t index, block;
  std::size_t token;
};

// One thread's, kept between tasks.
struct Scratch {
  std::vector<float> unpacked, keys, values, scores, sums, peak, mass, keep;
  std::vector<const float*> a;
  std::vector<float*> c;
  std::vector<Choice> choices;
};

void unpack_block(const AttentionLoops& loops, const AttentionLane& lane, std::int64_t block, std::size_t head,
                  std::size_t vectors, std::size_t dim, float* out) {
  const std::int64_t h = static_cast<std::int64_t>(head);
  const std::uint8_t* scales =
      lane.scales ? lane.scales + block * lane.scale_block_stride + h * lane.scale_head_stride : nullptr;
  loops.unpack(lane, lane.codes + block * lane.block_stride + h * lane.head_stride, scales, vectors, dim, out);
}

void attend_tile(const AttentionLoops& loops, const AttentionCall& call, std::size_t first, std::size_t count,
                 std::size_t head, Scratch& s) {
  const std::size_t dim = call.dim, group = call.group, rows = count * group;
  s.unpacked.resize(kAttentionBlock * dim);
  s.keys.resize(kAttentionBlock * dim);
  s.values.resize(kAttentionBlock * dim);
  s.scores.resize(rows * kAttentionBlock);
  s.keep.resize(rows);
  s.a.resize(rows);
  s.c.resize(rows);
  s.sums.assign(rows * dim, 0.0f);
  s.peak.assign(rows, -std::numeric_limits<float>::infinity());
  s.mass.assign(rows, 0.0f);

  s.choices.clear();
  for (std::size_t t = 0; t < count; ++t) {
    const std::int64_t* chosen = call.selection + ((first + t) * call.kv_heads + head) * call.slots;
    const std::int64_t* table = call.tables + static_cast<std::int64_t>(first + t) * call.table_stride;
    for (std::size_t i = 0; i < call.slots; ++i) {
      if (chosen[i] >= 0) s.choices.push_back({chosen[i], table[chosen[i]], t});
    }
  }
  std::sort(s.choices.begin(), s.choices.end(), [](const Choice& x, const Choice& y) {
    if (x.index != y.index) return x.index < y.index;
    return x.block != y.block ? x.block < y.block : x.token < y.token;
  });

  const auto visible_of = [&](const Choice& choice) {
    const std::int64_t left = call.positions[first + choice.token] - choice.index * std::int64_t{kAttentionBlock} + 1;
    return static_cast<std::size_t>(std::min<std::int64_t>(left, kAttentionBlock));
  };
  for (std::size_t start = 0, end; start < s.choices.size(); start = end) {
    const Choice& block = s.choices[start];
    end = start;
    std::size_t most = 0;
    for (; end < s.choices.size() && s.choices[end].index == block.index && s.choices[end].block == block.block; ++end) {
      most = std::max(most, visible_of(s.choices[end]));
    }
    unpack_block(loops, call.keys, block.block, head, kAttentionBlock, dim, s.unpacked.data());
    loops.transpose(s.unpacked.data(), dim, s.keys.data());
    unpack_block(loops, call.values, block.block, head, most, dim, s.values.data());

    const std::size_t members = (end - start) * group;
    for (std::size_t i = 0; i < members; ++i) {
      const std::size_t token = first + s.choices[start + i / group].token;
      s.a[i] = call.query + ((token * call.kv_heads + head) * group + i % group) * dim;
      s.c[i] = s.scores.data() + i * kAttentionBlock;
    }
    loops.product(s.a.data(), s.keys.data(), s.c.data(), nullptr, members, dim, kAttentionBlock);
    for (std::size_t i = 0; i < members; ++i) {
      const Choice& choice = s.choices[start + i / group];
      const std::size_t row = choice.token * group + i % group;
      s.keep[i] = loops.softmax(s.c[i], visible_of(choice), call.scale, &s.peak[row], &s.mass[row]);
      s.a[i] = s.c[i];
      s.c[i] = s.sums.data() + row * dim;
    }
    // Values past a row's position are not even multiplied by zero: they may be NaN.
    for (std::size_t i = start, run; i < end; i = run) {
      const std::size_t visible = visible_of(s.choices[i]);
      for (run = i; run < end && visible_of(s.choices[run]) == visible;) ++run;
      const std::size_t at = (i - start) * group;
      loops.product(&s.a[at], s.values.data(), &s.c[at], &s.keep[at], (run - i) * group, visible, dim);
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    float* out = call.out + (((first + row / group) * call.kv_heads + head) * group + row % group) * dim;
    for (std::size_t d = 0; d < dim; ++d) out[d] = s.sums[row * dim + d] / s.mass[row];
  }
}

}  // namespace

const AttentionLoops kAttentionScalar = {unpack, transpose, product, softmax};

void sparse_attention(const AttentionLoops& loops, const AttentionCall& call, int threads) {
  // Large tiles share unpacked blocks, up to where their sums leave the second cache; but every thread wants tasks.
  const std::size_t workers = threads < 1 ? 1 : static_cast<std::size_t>(threads);
  const std::size_t fair = call.tokens * call.kv_heads / (4 * workers);
  const std::size_t fitting = std::max<std::size_t>(1, 65536 / (call.group * (call.dim + kAttentionBlock)));
  const std::size_t tile = std::max<std::size_t>(1, std::min(fair, fitting));
  const std::size_t tiles = (call.tokens + tile - 1) / tile;
  parallel_for(tiles * call.kv_heads, threads, [&](std::size_t task) {
    static thread_local Scratch scratch;
    const std::size_t first = task / call.kv_heads * tile;
    attend_tile(loops, call, first, std::min(tile, call.tokens - first), task % call.kv_heads, scratch);
  });
}

}  // namespace tamis
