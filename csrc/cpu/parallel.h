// Tasks in a loop.
#pragma once

#include <cstddef>
#include <functional>

namespace tamis {

// Runs body(0) … body(tasks − 1), on the calling thread.
inline void parallel_for(std::size_t tasks, int /*threads*/, const std::function<void(std::size_t)>& body) {
  for (std::size_t task = 0; task < tasks; ++task) body(task);
}

}  // namespace tamis
