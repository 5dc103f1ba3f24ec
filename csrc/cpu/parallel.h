// Tasks over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace tamis {

// Runs body(0) … body(tasks − 1) on up to `threads` threads, the caller among them; returns when all are done. Tasks
// are claimed in order, one at a time. The first exception travels to the caller, and no further task begins.
// Threads live for the call (some 20 µs each), so nothing outlives it that a fork or an exit would have to know of.
inline void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body) {
  const std::size_t workers = std::min(tasks, static_cast<std::size_t>(std::max(threads, 1)));
  if (workers <= 1) {
    for (std::size_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::size_t task = next++; task < tasks; task = next++) body(task);
    } catch (...) {
      next = tasks;
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(workers - 1);
  try {
    while (helpers.size() + 1 < workers) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // the system gives no more threads: those that run do all the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tamis
