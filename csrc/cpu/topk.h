// Exact selection of k blocks a row, in a total order: forced blocks, then score descending, then lower block id.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

// scores [rows, num_blocks]; positions [rows / heads]; out [rows, k]: ids in ascending order, −1 padded.
// NaN counts as −1e30, ±inf as the largest finite values. Blocks past a row's own (position / 128) are never chosen;
// its first `init` and last `local` visible ones are forced. One pass over a row's visible scores.
void select_blocks(const float* scores, std::size_t rows, std::size_t heads, std::size_t num_blocks,
                   const std::int64_t* positions, std::size_t k, std::int64_t init, std::int64_t local,
                   std::int64_t* out, int threads);

}  // namespace tamis
