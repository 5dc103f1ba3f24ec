// Index scores of one request on a CPU: score[row, b] = the largest dot of query row `row` with the keys of block b
// that the row may see; −inf where it sees none, NaN where a visible dot is NaN.
//
// A dot is one chain of multiply-adds over ascending dims from 0, whatever tile, register block or thread computes it,
// and a maximum is exact: a score's bits depend on its query, its block and the path (scalar or AVX2) alone.
//
// A block's keys are unpacked once for a tile of rows, two panels of 16 keys at a time ([panel][dim][16], 16 KiB for
// 128 dims, so that they are still in the first cache when they are dotted); a vector holds keys, a query value is
// broadcast. Bytes read: the block's codes and scales once a tile; FLOPs: 2 · rows · 128 · dim a block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

constexpr std::size_t kBlockTokens = 128;
constexpr std::size_t kPanelKeys = 16;
constexpr std::size_t kMaxIndexDim = 256;

enum class KeyFormat { kFloat32, kBfloat16, kFp8, kNvfp4Exact, kNvfp4E4m3 };

// Index keys of a pool: block i's 128 keys stand one after the other at codes + i · codes_stride; nvfp4 has 8 bytes of
// codes and one scale byte for 16 dims (nvfp4.h). Strides are in bytes.
struct KeyLane {
  KeyFormat format;
  std::size_t dim;  // a multiple of 16, at most kMaxIndexDim
  const std::uint8_t* codes;
  std::size_t codes_stride;
  const std::uint8_t* scales;  // nvfp4 only
  std::size_t scales_stride;
};

// One block as the code paths see it. `table` is what a byte stands for: 256 values for fp8, nvfp4_table for nvfp4.
// `e4m3_bytes` is the table of the e4m3 contract as E4M3 bytes: [256 scale bytes][16 codes].
struct KeyBlock {
  KeyFormat format;
  std::size_t dim;
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const float* table;
  const std::uint8_t* e4m3_bytes;
};

// Rows of a tile at most: unpacking costs about as much as scoring 12 rows.
constexpr std::size_t kTileRows = 192;

// Queries of a tile: row i is query + i · dim, sees the first visible[i] keys (0 to 128) of the block, and its score
// goes to out[i · out_stride].
struct QueryTile {
  const float* query;
  const std::int32_t* visible;
  std::size_t rows;  // 1 to kTileRows
  std::int32_t most_visible;
  float* out;
  std::size_t out_stride;
};

// A code path: scores of one block. `scratch` holds two panels of block.dim, aligned to 64 bytes.
using ScoreBlock = void (*)(const KeyBlock& block, const QueryTile& tile, float* scratch);

void score_block_scalar(const KeyBlock& block, const QueryTile& tile, float* scratch);
void score_block_avx2(const KeyBlock& block, const QueryTile& tile, float* scratch);  // AVX2, FMA and F16C

// query [rows, dim]; positions [rows / heads]; block_table [num_blocks], ids that the caller has checked;
// out [rows, num_blocks].
void index_scores(ScoreBlock score_block, const KeyLane& lane, const float* query, std::size_t rows, std::size_t heads,
                  const std::int64_t* positions, const std::int64_t* block_table, std::size_t num_blocks, float* out,
                  int threads);

}  // namespace tamis
