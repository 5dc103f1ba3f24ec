// Tasks over a persistent pool of threads.
#pragma once

#include <cstddef>
#include <functional>

namespace tamis {

// Run body(0) … body(tasks − 1), each once, on the caller and at most threads − 1 pool threads; return when all are
// done. Tasks are claimed one by one, in no fixed order. The first exception stops the claiming and is thrown here.
// A call from inside a body, or while another thread's call holds the pool, runs on its caller alone.
void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body);

// Threads that are worth waking for so many multiply-adds: a share under a tenth of a millisecond is done before a thread
// that has to be scheduled first, and what else runs on the machine (an OpenMP pool that spins, say) makes it later still.
constexpr std::size_t kLeastShare = 2'000'000;

inline int threads_for(std::size_t multiply_adds, int threads) {
  const std::size_t shares = multiply_adds / kLeastShare;
  return shares < static_cast<std::size_t>(threads) ? (shares > 1 ? static_cast<int>(shares) : 1) : threads;
}

}  // namespace tamis
