// Tasks over a persistent pool of threads.
#pragma once

#include <cstddef>
#include <functional>

namespace tamis {

// Run body(0) … body(tasks − 1), each once, on the caller and at most threads − 1 pool threads; return when all are
// done. Tasks are claimed one by one, in no fixed order. The first exception stops the claiming and is thrown here.
// A call from inside a body, or while another thread's call holds the pool, runs on its caller alone.
void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body);

}  // namespace tamis
