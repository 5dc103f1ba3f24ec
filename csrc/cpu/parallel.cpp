#include "parallel.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace tamis {
namespace {

struct Job {
  std::size_t tasks;
  const std::function<void(std::size_t)>& body;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void work() {
    for (std::size_t task; (task = next.fetch_add(1)) < tasks;) {
      try {
        body(task);
      } catch (...) {
        next.store(tasks);
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

class Pool {
 public:
  bool take() { return !busy_.exchange(true); }
  void leave() { busy_.store(false); }

  void run(Job& job, int helpers) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      try {
        for (; workers_ < helpers; ++workers_) std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {  // no more threads to have: go on with those there are
      }
      job_ = &job;
      seats_ = helpers;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    seats_ = 0;  // a helper that wakes from here on is late and must not touch the job
    done_.wait(lock, [this] { return active_ == 0; });
    job_ = nullptr;
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return seats_ > 0; });
      --seats_;
      ++active_;
      Job* job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::atomic<bool> busy_{false};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int seats_ = 0, active_ = 0, workers_ = 0;
};

// Never destroyed: its detached threads sleep on it until the process ends, whatever the order of destructors.
std::atomic<Pool*> current_pool{nullptr};

Pool& pool() {
  static const bool once = [] {
    current_pool.store(new Pool);
#if !defined(_WIN32)
    // A forked child has none of the threads, and may have copied a locked mutex: it starts anew.
    pthread_atfork(nullptr, nullptr, [] { current_pool.store(new Pool); });
#endif
    return true;
  }();
  (void)once;
  return *current_pool.load();
}

}  // namespace

void parallel_for(std::size_t tasks, int threads, const std::function<void(std::size_t)>& body) {
  if (tasks == 0) return;
  const std::size_t wanted = threads < 1 ? 1 : static_cast<std::size_t>(threads);
  const int helpers = static_cast<int>((wanted < tasks ? wanted : tasks) - 1);
  Pool& shared = pool();
  if (helpers == 0 || !shared.take()) {
    for (std::size_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  Job job{tasks, body, {}, {}, {}};
  shared.run(job, helpers);
  shared.leave();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace tamis
