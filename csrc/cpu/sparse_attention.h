// Sparse attention over packed blocks: softmax(q · K) · V over each query's own blocks, in ascending order of blocks.
//
// A task is a tile of tokens and a KV head. It walks the union of its tokens' blocks, unpacks each once into scratch
// (keys transposed) and updates a running maximum, weight and sum for every row that chose the block. For one row the
// operations and their order depend on its own query, blocks and position only, so that its bits are the same in any
// tile, batch and number of threads. Rows are multiplied several at a time, each with its own chain of sums.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

constexpr std::size_t kAttentionBlock = 128;  // tokens
constexpr std::size_t kMaxAttentionDim = 256;

enum class LaneFormat { kFloat32, kBfloat16, kFp8, kNvfp4 };

// One kind of vectors. A block of a head is dense; blocks and heads lie strides of bytes apart.
struct AttentionLane {
  LaneFormat format;
  const std::uint8_t* codes;
  std::int64_t block_stride, head_stride;
  const std::uint8_t* scales;  // NVFP4 alone
  std::int64_t scale_block_stride, scale_head_stride;
  const float* table;  // nvfp4_table of the contract
};

struct AttentionCall {
  std::size_t tokens, kv_heads, group, dim, slots;
  const float* query;             // [tokens, kv_heads · group, dim]
  AttentionLane keys, values;
  const std::int64_t* selection;  // [tokens, kv_heads, slots] block indices, negative = none
  const std::int64_t* tables;     // [tokens, ·] block ids
  std::int64_t table_stride;      // of a token, in elements; 0 when all share a row
  const std::int64_t* positions;  // [tokens]
  float scale;
  float* out;  // [tokens, kv_heads · group, dim]
};

// The inner loops, one set an instruction set.
struct AttentionLoops {
  // `vectors` vectors of `dim` values of a head in a block → fp32.
  void (*unpack)(const AttentionLane& lane, const std::uint8_t* codes, const std::uint8_t* scales, std::size_t vectors,
                 std::size_t dim, float* out);
  // [128, dim] → [dim, 128].
  void (*transpose)(const float* in, std::size_t dim, float* out);
  // c[r][:width] = keep[r] · c[r] + Σ a[r][d] · b[d][:width], d ascending; without keep the sum starts at 0. width is
  // a multiple of 16.
  void (*product)(const float* const* a, const float* b, float* const* c, const float* keep, std::size_t rows,
                  std::size_t depth, std::size_t width);
  // 128 dot products of a row, of which `visible` count → weights; updates peak and mass. Returns what is kept of the
  // sums so far.
  float (*softmax)(float* scores, std::size_t visible, float scale, float* peak, float* mass);
};

extern const AttentionLoops kAttentionScalar;
#if TAMIS_WITH_AVX2
extern const AttentionLoops kAttentionAvx2;  // needs AVX2 and FMA
#endif

void sparse_attention(const AttentionLoops& loops, const AttentionCall& call, int threads);

}  // namespace tamis
