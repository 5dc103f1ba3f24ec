#include "mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel.h"

namespace tamis {
namespace {

// Columns of one task: small enough to share a single token's work among threads.
constexpr std::size_t kColumns = 48;
// Rows of one task: the scratch of gate and up stays in the second-level cache.
constexpr std::size_t kRows = 64;

// Rows that go through one expert.
struct Job {
  const float* gate_up;
  const float* down;
  std::size_t inner;
  std::vector<const float*> x;
  std::vector<float*> hidden, out;
};

struct Task {
  std::size_t job, first_row, rows, first_column, columns;
};

std::vector<Task> cut(const std::vector<Job>& jobs, std::size_t (*width)(const Job&, std::size_t), std::size_t hidden) {
  std::vector<Task> tasks;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    for (std::size_t row = 0; row < jobs[j].x.size(); row += kRows) {
      const std::size_t rows = std::min(kRows, jobs[j].x.size() - row);
      for (std::size_t column = 0; column < width(jobs[j], hidden); column += kColumns) {
        tasks.push_back({j, row, rows, column, std::min(kColumns, width(jobs[j], hidden) - column)});
      }
    }
  }
  return tasks;
}

// NaN stays NaN.
inline float clamp(float value, float low, float high) {
  if (value > high) return high;
  return value < low ? low : value;
}

void gate_and_up(const Mixture& m, const Job& job, const Task& t, Product product) {
  thread_local std::vector<float> scratch;
  thread_local std::vector<float*> rows;
  scratch.resize(2 * t.rows * t.columns);
  rows.resize(2 * t.rows);
  for (std::size_t i = 0; i < 2 * t.rows; ++i) rows[i] = scratch.data() + i * t.columns;
  const float* gate = job.gate_up + t.first_column * m.hidden;
  const float* up = job.gate_up + (job.inner + t.first_column) * m.hidden;
  product(job.x.data() + t.first_row, t.rows, gate, t.columns, m.hidden, rows.data());
  product(job.x.data() + t.first_row, t.rows, up, t.columns, m.hidden, rows.data() + t.rows);
  for (std::size_t i = 0; i < t.rows; ++i) {
    float* hidden = job.hidden[t.first_row + i] + t.first_column;
    for (std::size_t c = 0; c < t.columns; ++c) {
      const float g = clamp(rows[i][c], -HUGE_VALF, m.limit);
      const float u = clamp(rows[t.rows + i][c], -m.limit, m.limit);
      hidden[c] = g / (1.0f + std::exp(-m.alpha * g)) * (u + 1.0f);
    }
  }
}

}  // namespace

void mixture(const Mixture& m, Product product, int threads) {
  const std::size_t pairs = m.tokens * m.chosen;
  threads = threads_for(3 * m.hidden * (pairs * m.inner + m.tokens * m.shared), threads);
  std::vector<std::size_t> order(pairs);
  for (std::size_t p = 0; p < pairs; ++p) {
    if (m.experts[p] < 0 || static_cast<std::size_t>(m.experts[p]) >= m.num_experts) {
      throw std::out_of_range("an expert's id is " + std::to_string(m.experts[p]) + ", but there are " +
                              std::to_string(m.num_experts) + ".");
    }
  }
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return m.experts[a] < m.experts[b]; });

  std::vector<float> hidden(pairs * m.inner + m.tokens * m.shared), routed(pairs * m.hidden);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t pair = order[i];
    const auto expert = static_cast<std::size_t>(m.experts[pair]);
    if (i == 0 || m.experts[order[i - 1]] != m.experts[pair]) {
      jobs.push_back({m.gate_up + expert * 2 * m.inner * m.hidden, m.down + expert * m.hidden * m.inner, m.inner,
                      {}, {}, {}});
    }
    jobs.back().x.push_back(m.x + pair / m.chosen * m.hidden);
    jobs.back().hidden.push_back(hidden.data() + pair * m.inner);
    jobs.back().out.push_back(routed.data() + pair * m.hidden);
  }
  if (m.tokens > 0) jobs.push_back({m.shared_gate_up, m.shared_down, m.shared, {}, {}, {}});
  for (std::size_t t = 0; t < m.tokens; ++t) {
    jobs.back().x.push_back(m.x + t * m.hidden);
    jobs.back().hidden.push_back(hidden.data() + pairs * m.inner + t * m.shared);
    jobs.back().out.push_back(m.out + t * m.hidden);
  }

  const auto first = cut(jobs, [](const Job& job, std::size_t) { return job.inner; }, m.hidden);
  parallel_for(first.size(), threads,
               [&](std::size_t i) { gate_and_up(m, jobs[first[i].job], first[i], product); });

  const auto second = cut(jobs, [](const Job&, std::size_t width) { return width; }, m.hidden);
  parallel_for(second.size(), threads, [&](std::size_t i) {
    const Task& t = second[i];
    const Job& job = jobs[t.job];
    std::vector<float*> out(t.rows);
    for (std::size_t r = 0; r < t.rows; ++r) out[r] = job.out[t.first_row + r] + t.first_column;
    product(job.hidden.data() + t.first_row, t.rows, job.down + t.first_column * job.inner, t.columns, job.inner,
            out.data());
  });

  parallel_for((m.tokens + kRows - 1) / kRows, threads, [&](std::size_t tile) {
    std::vector<std::size_t> slots(m.chosen);
    for (std::size_t t = tile * kRows; t < std::min(m.tokens, (tile + 1) * kRows); ++t) {
      std::iota(slots.begin(), slots.end(), t * m.chosen);
      std::sort(slots.begin(), slots.end(), [&](std::size_t a, std::size_t b) { return m.experts[a] < m.experts[b]; });
      float* out = m.out + t * m.hidden;
      for (std::size_t c = 0; c < m.hidden; ++c) {
        float sum = 0.0f;
        for (const std::size_t slot : slots) sum += m.weights[slot] * routed[slot * m.hidden + c];
        out[c] += m.scale * sum;
      }
    }
  });
}

}  // namespace tamis
