// A few threads that share the chunks of one operation after another.
//
// A chunk goes to whichever thread comes first, so that a thread that the system has put aside, or that has not woken
// yet, holds up no more than the chunk that it has begun. Who waits spins for some tens of microseconds (the time
// between two operations) and then sleeps. Results do not depend on who computes what.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace trillm {

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    // `threads` includes the one that calls `run`.
    explicit Pool(int threads) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the host program
        for (int i = 1; i < threads; i++) workers_.emplace_back([this] { serve(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Pool() {
        leaving_.store(true);
        wake();
        for (std::thread& worker : workers_) worker.join();
    }

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls function(chunk) for each chunk below `chunks` and returns when all are done. One caller at a time.
    template <class Function>
    void run(int chunks, const Function& function) {
        if (chunks <= 1 || workers_.empty()) {
            for (int chunk = 0; chunk < chunks; chunk++) function(chunk);
            return;
        }
        function_.store(&function, std::memory_order_relaxed);
        call_.store([](const void* f, int chunk) { (*static_cast<const Function*>(f))(chunk); },
                    std::memory_order_relaxed);
        unfinished_.store(chunks, std::memory_order_relaxed);
        generation_++;
        tickets_.store(generation_ << 32 | static_cast<uint32_t>(chunks));
        if (asleep_.load() > 0) wake();
        while (work()) {
        }
        await_end();
    }

  private:
    static constexpr auto kSpin = std::chrono::microseconds(50);

    // Takes a chunk and computes it; false if there is none.
    //
    // What is read between the two looks at tickets_ is of one operation: `run` changes it only after all chunks of the
    // operation before are finished, and then a ticket of that operation can no longer be taken.
    bool work() {
        uint64_t ticket = tickets_.load();
        while (static_cast<uint32_t>(ticket) > 0) {
            const void* function = function_.load(std::memory_order_relaxed);
            const auto call = call_.load(std::memory_order_relaxed);
            if (!tickets_.compare_exchange_weak(ticket, ticket - 1)) continue;
            call(function, static_cast<int>(static_cast<uint32_t>(ticket)) - 1);
            if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
            return true;
        }
        return false;
    }

    void serve() {
        while (!leaving_.load()) {
            if (work() || spin([this] { return has_work(); })) continue;
            asleep_.fetch_add(1);
            const uint32_t seen = wakes_.load();
            if (!has_work()) wakes_.wait(seen);
            asleep_.fetch_sub(1);
        }
    }

    bool has_work() const { return static_cast<uint32_t>(tickets_.load()) > 0 || leaving_.load(); }

    void await_end() {
        if (spin([this] { return unfinished_.load() == 0; })) return;
        for (uint32_t left = unfinished_.load(); left > 0; left = unfinished_.load()) unfinished_.wait(left);
    }

    void wake() {
        wakes_.fetch_add(1);
        wakes_.notify_all();
    }

    // Whether the condition came true in a short time.
    template <class Condition>
    static bool spin(const Condition& condition) {
        const auto until = std::chrono::steady_clock::now() + kSpin;
        do {
            for (int i = 0; i < 32; i++) {
                if (condition()) return true;
                pause_briefly();
            }
        } while (std::chrono::steady_clock::now() < until);
        return false;
    }

    std::vector<std::thread> workers_;
    uint64_t generation_ = 0;
    alignas(64) std::atomic<uint64_t> tickets_ = 0;  // generation and, in the lower half, chunks that nobody has taken
    alignas(64) std::atomic<uint32_t> unfinished_ = 0;
    alignas(64) std::atomic<const void*> function_ = nullptr;
    std::atomic<void (*)(const void*, int)> call_ = nullptr;
    std::atomic<uint32_t> wakes_ = 0;
    std::atomic<int> asleep_ = 0;
    std::atomic<bool> leaving_ = false;
};

}  // namespace trillm
