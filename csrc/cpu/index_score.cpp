#include "index_score.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "nvfp4.h"
#include "parallel.h"

namespace tamis {
namespace {

// Blocks of a task: enough work to outweigh claiming it, few enough that a decode step of 8K tokens fills 8 threads.
constexpr std::size_t kTaskBlocks = 8;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

const std::uint8_t* e4m3_bytes() {
  static const std::array<std::uint8_t, 256 * 16> table = [] {
    const float* values = nvfp4_table(Contract::kE4m3);
    std::array<std::uint8_t, 256 * 16> bytes{};
    for (std::size_t scale = 0; scale < 256; ++scale) {
      for (std::size_t code = 0; code < 8; ++code) {
        const float value = values[scale * 8 + code];
        unsigned byte = 0;  // 0x7F, NaN, where no magnitude is equal
        while (byte < 0x7Fu && decode_e4m3(byte) != std::fabs(value)) ++byte;
        if (std::signbit(value)) byte |= 0x80u;
        bytes[scale * 16 + code] = static_cast<std::uint8_t>(byte);
        bytes[scale * 16 + code + 8] = static_cast<std::uint8_t>(byte ^ 0x80u);
      }
    }
    return bytes;
  }();
  return table.data();
}

const float* table_of(KeyFormat format) {
  switch (format) {
    case KeyFormat::kFp8: return e4m3_table();
    case KeyFormat::kNvfp4Exact: return nvfp4_table(Contract::kExact);
    case KeyFormat::kNvfp4E4m3: return nvfp4_table(Contract::kE4m3);
    default: return nullptr;
  }
}

void unpack_key(const KeyBlock& block, std::size_t key, float* values) {
  const std::size_t dim = block.dim;
  switch (block.format) {
    case KeyFormat::kFloat32:
      std::memcpy(values, block.codes + key * dim * 4, dim * 4);
      return;
    case KeyFormat::kBfloat16:
      for (std::size_t d = 0; d < dim; ++d) {
        std::uint16_t half;
        std::memcpy(&half, block.codes + (key * dim + d) * 2, 2);
        const std::uint32_t bits = std::uint32_t{half} << 16;
        std::memcpy(values + d, &bits, 4);
      }
      return;
    case KeyFormat::kFp8:
      for (std::size_t d = 0; d < dim; ++d) values[d] = block.table[block.codes[key * dim + d]];
      return;
    default: {
      const std::size_t groups = dim / kGroupValues;
      nvfp4_unpack_scalar(block.codes + key * groups * kGroupBytes, block.scales + key * groups, values, groups,
                          block.table);
    }
  }
}

}  // namespace

void score_block_scalar(const KeyBlock& block, const QueryTile& tile, float* panel) {
  const std::size_t dim = block.dim;
  float best[kTileRows];
  std::fill(best, best + tile.rows, kMinusInfinity);
  for (std::int32_t first = 0; first < tile.most_visible; first += static_cast<std::int32_t>(kPanelKeys)) {
    float values[kMaxIndexDim];
    for (std::size_t key = 0; key < kPanelKeys; ++key) {
      unpack_key(block, static_cast<std::size_t>(first) + key, values);
      for (std::size_t d = 0; d < dim; ++d) panel[d * kPanelKeys + key] = values[d];
    }
    for (std::size_t row = 0; row < tile.rows; ++row) {
      const float* query = tile.query + row * dim;
      float dots[kPanelKeys] = {};
      for (std::size_t d = 0; d < dim; ++d) {
        for (std::size_t j = 0; j < kPanelKeys; ++j) dots[j] += query[d] * panel[d * kPanelKeys + j];
      }
      const std::int32_t seen = std::min(tile.visible[row] - first, static_cast<std::int32_t>(kPanelKeys));
      for (std::int32_t j = 0; j < seen; ++j) {
        if (!(dots[j] <= best[row]) && !std::isnan(best[row])) best[row] = dots[j];  // the first NaN stays
      }
    }
  }
  for (std::size_t row = 0; row < tile.rows; ++row) tile.out[row * tile.out_stride] = best[row];
}

void index_scores(ScoreBlock score_block, const KeyLane& lane, const float* query, std::size_t rows, std::size_t heads,
                  const std::int64_t* positions, const std::int64_t* block_table, std::size_t num_blocks, float* out,
                  int threads) {
  const std::size_t dim = lane.dim;
  const std::size_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::size_t runs = (num_blocks + kTaskBlocks - 1) / kTaskBlocks;
  const float* table = table_of(lane.format);
  const std::uint8_t* bytes = lane.format == KeyFormat::kNvfp4E4m3 ? e4m3_bytes() : nullptr;

  parallel_for(tiles * runs, threads, [&](std::size_t task) {
    const std::size_t first_row = task / runs * kTileRows, tile_rows = std::min(kTileRows, rows - first_row);
    const std::size_t first_block = task % runs * kTaskBlocks;
    const std::size_t last_block = std::min(first_block + kTaskBlocks, num_blocks);
    alignas(64) float scratch[2 * kPanelKeys * kMaxIndexDim];
    for (std::size_t block = first_block; block < last_block; ++block) {
      std::int32_t visible[kTileRows];
      std::int32_t most = 0;
      const std::int64_t block_start = static_cast<std::int64_t>(block * kBlockTokens);
      for (std::size_t i = 0; i < tile_rows; ++i) {
        const std::int64_t seen = positions[(first_row + i) / heads] + 1 - block_start;
        visible[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(seen, 0, kBlockTokens));
        most = std::max(most, visible[i]);
      }
      float* scores = out + first_row * num_blocks + block;
      if (most == 0) {
        for (std::size_t i = 0; i < tile_rows; ++i) scores[i * num_blocks] = kMinusInfinity;
        continue;
      }
      const std::size_t id = static_cast<std::size_t>(block_table[block]);
      const std::uint8_t* scales = lane.scales ? lane.scales + id * lane.scales_stride : nullptr;
      score_block({lane.format, dim, lane.codes + id * lane.codes_stride, scales, table, bytes},
                  {query + first_row * dim, visible, tile_rows, most, scores, num_blocks}, scratch);
    }
  });
}

}  // namespace tamis
