// Threads that kernels share.
#pragma once

#include <cstddef>
#include <functional>

namespace tamis {

// Run body(0) ... body(tasks - 1) on up to `threads` threads, the caller among them, and return when all are done. Tasks
// are handed out one by one, in order. An exception of a body is thrown here once the others have ended. A body must
// not call parallel_for itself.
//
// The threads are started when they are first asked for and then wait; a process that was forked starts its own.
void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body);

// Threads that are worth waking for so many multiply-adds: a share under a tenth of a millisecond is done before a thread
// that has to be scheduled first, and what else runs on the machine (an OpenMP pool that spins, say) makes it later still.
constexpr std::size_t kLeastShare = 2'000'000;

inline int threads_for(std::size_t multiply_adds, int threads) {
  const std::size_t shares = multiply_adds / kLeastShare;
  return shares < static_cast<std::size_t>(threads) ? (shares > 1 ? static_cast<int>(shares) : 1) : threads;
}

}  // namespace tamis
