#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace tamis {
namespace {

// Decode steps make many short calls in a row: a helper looks for the next one this often before it sleeps.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_ia32_pause();
#endif
}

struct Job {
  const std::function<void(std::size_t)>* body = nullptr;
  std::size_t tasks = 0;
  std::atomic<std::size_t> next{0};
  std::atomic<int> seats{0};    // helpers that may still join
  std::atomic<int> working{0};  // helpers that joined and have not left
  std::mutex mutex;
  std::exception_ptr error;

  void run() {
    try {
      for (std::size_t i; (i = next.fetch_add(1)) < tasks;) (*body)(i);
    } catch (...) {
      next.store(tasks);  // nobody takes another
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }
};

class Pool {
 public:
  void run(std::size_t tasks, int helpers, const std::function<void(std::size_t)>& body) {
    const std::lock_guard<std::mutex> one_at_a_time(callers_);
    while (threads_ < helpers) start();
    Job job;
    job.body = &body;
    job.tasks = tasks;
    job.seats.store(helpers);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      turn_.fetch_add(1);
    }
    wake_.notify_all();
    job.run();
    {
      // From here on nobody joins; those who did hold a reference until they leave.
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = nullptr;
    }
    while (job.working.load() > 0) pause();
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  void start() {
    std::thread([this] { serve(); }).detach();
    ++threads_;
  }

  void serve() {
    std::size_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && turn_.load() == seen; ++spin) pause();
      Job* job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return turn_.load() != seen; });
        seen = turn_.load();
        job = job_;
        if (job == nullptr || job->seats.fetch_sub(1) <= 0) continue;
        job->working.fetch_add(1);
      }
      job->run();
      job->working.fetch_sub(1);
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable wake_;
  std::atomic<std::size_t> turn_{0};
  Job* job_ = nullptr;
  int threads_ = 0;
};

// Never destroyed: its threads may outlive static objects. A child of fork has none of them and starts afresh.
Pool* pool = new Pool;

#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif

}  // namespace

void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body) {
  const int helpers = static_cast<int>(std::min<std::size_t>(tasks, static_cast<std::size_t>(std::max(threads, 1)))) - 1;
  if (helpers <= 0) {
    for (std::size_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  pool->run(tasks, helpers, body);
}

}  // namespace tamis
