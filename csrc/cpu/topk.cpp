#include "topk.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "parallel.h"

namespace tamis {
namespace {

constexpr std::int64_t kBlockTokens = 128;
constexpr float kNanScore = -1e30f;
// Scores looked at together: where none beats the threshold, and that is nearly everywhere, nothing else happens.
constexpr std::int64_t kStride = 16;

// Larger key = earlier in the order. The float's bits made to ascend as unsigned, then the block id upside down.
std::uint64_t key_of(float score, std::int64_t block) {
  score += 0.0f;  // −0 equals 0
  std::uint32_t bits;
  std::memcpy(&bits, &score, 4);
  bits = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return std::uint64_t{bits} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(block));
}

std::int64_t block_of(std::uint64_t key) { return static_cast<std::int64_t>(0xFFFFFFFFu - (key & 0xFFFFFFFFu)); }

float bounded(float score) {
  constexpr float largest = std::numeric_limits<float>::max();
  return score != score ? kNanScore : std::min(std::max(score, -largest), largest);
}

// The best `count` of the blocks first..last into `best`, as keys in descending order; returns how many there are.
// Blocks come in ascending order, so one that only equals the count-th best loses to it: "greater" is all it takes.
// Insertion costs at most `count` moves, and of n scores in random order about count · ln(n / count) get that far.
std::size_t best_of(const float* scores, std::int64_t first, std::int64_t last, std::size_t count,
                    std::vector<std::uint64_t>& best) {
  best.resize(count);
  std::size_t size = 0;
  float threshold = -std::numeric_limits<float>::infinity();
  const auto consider = [&](std::int64_t block) {
    const float score = bounded(scores[block]);
    if (!(score > threshold)) return;
    const std::uint64_t key = key_of(score, block);
    std::size_t at = size < count ? size++ : count - 1;
    for (; at > 0 && best[at - 1] < key; --at) best[at] = best[at - 1];
    best[at] = key;
    if (size == count) threshold = bounded(scores[block_of(best[count - 1])]);
  };
  std::int64_t block = first;
  for (; block + kStride <= last; block += kStride) {
    int hits = 0;
    for (std::int64_t i = 0; i < kStride; ++i) hits += !(scores[block + i] <= threshold);  // NaN is looked at
    if (!hits) continue;
    for (std::int64_t i = 0; i < kStride; ++i) consider(block + i);
  }
  for (; block < last; ++block) consider(block);
  return size;
}

void select_row(const float* scores, std::int64_t num_blocks, std::int64_t position, std::size_t k, std::int64_t init,
                std::int64_t local, std::int64_t* out) {
  const std::int64_t own = position >= 0 ? position / kBlockTokens : -1;
  const std::int64_t visible = std::min(own + 1, num_blocks);
  // Forced: [0, init) and [tail, visible).
  const std::int64_t head = std::clamp<std::int64_t>(init, 0, visible);
  const std::int64_t tail = std::clamp<std::int64_t>(own + 1 - local, head, visible);
  const std::int64_t forced = head + visible - tail;
  const std::int64_t room = static_cast<std::int64_t>(k);

  std::size_t chosen = 0;
  for (std::int64_t block = 0; block < head && chosen < k; ++block) out[chosen++] = block;
  if (forced < room) {
    thread_local std::vector<std::uint64_t> best;
    const std::size_t size = best_of(scores, head, tail, static_cast<std::size_t>(room - forced), best);
    std::int64_t* scored = out + chosen;
    for (std::size_t i = 0; i < size; ++i) out[chosen++] = block_of(best[i]);
    std::sort(scored, out + chosen);
  }
  for (std::int64_t block = tail; block < visible && chosen < k; ++block) out[chosen++] = block;
  std::fill(out + chosen, out + k, std::int64_t{-1});
}

}  // namespace

void select_blocks(const float* scores, std::size_t rows, std::size_t heads, std::size_t num_blocks,
                   const std::int64_t* positions, std::size_t k, std::int64_t init, std::int64_t local,
                   std::int64_t* out, int threads) {
  // A task reads about 256 KiB of scores, whatever the number of blocks: a decode step is one task.
  const std::size_t task_rows = std::max<std::size_t>(1, 65536 / std::max<std::size_t>(1, num_blocks));
  parallel_for((rows + task_rows - 1) / task_rows, threads, [&](std::size_t task) {
    for (std::size_t row = task * task_rows; row < std::min(rows, (task + 1) * task_rows); ++row) {
      select_row(scores + row * num_blocks, static_cast<std::int64_t>(num_blocks), positions[row / heads], k, init,
                 local, out + row * k);
    }
  });
}

}  // namespace tamis
