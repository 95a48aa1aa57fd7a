// Collectives of a few processes of one host over memory that all of them map: what gpu/groups/shared_group.py calls.
//
// Each rank has a count of its collective pieces and two buffers, which it uses in turn. A rank writes its piece, then
// counts it; who needs it waits for the count. A buffer is written again two pieces later, when every rank has counted
// the piece between, and so has read this one. Sums are taken by every rank for itself, in the order of the ranks, so
// that all have the same bits. Messages from one rank to another go through a ring of their own.
//
// Who waits spins for some microseconds, gives the processor away for some more, and then sleeps, and looks now and then
// whether the others live. All of this is for processes that trust each other: they are of one engine.
#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "half.h"
#include "pool.h"

namespace trillm {

constexpr size_t kPiece = 1 << 18;      // bytes of a tensor that are exchanged at a time
constexpr size_t kRing = 1 << 22;       // bytes of messages from one rank to another that may be under way
constexpr uint32_t kMessages = 1 << 10; // how many
constexpr size_t kLine = 64;            // messages begin at multiples of it
constexpr uint64_t kElsewhere = ~uint64_t{0};

enum class Outcome : int { done, late, dead, left, different, elsewhere };

enum class Summed : int { float32, float64, bfloat16, float16, int32, int64 };

// A number that one process raises and others wait for.
struct Count {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;

    bool has_reached(uint32_t target) const {
        return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;  // it may have wrapped round
    }

    void raise() {
        value.store(value.load(std::memory_order_relaxed) + 1);  // the order of this and the next line matters: see sleep
        if (sleepers.load() > 0) syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    }

    // Until it is raised, or for `milliseconds`, or less. Either the raiser sees us, or we see what it has raised.
    void sleep(uint32_t target, int milliseconds) {
        sleepers.fetch_add(1);
        const uint32_t seen = value.load();
        if (static_cast<int32_t>(seen - target) < 0) {
            const timespec time = {0, milliseconds * 1'000'000L};
            syscall(SYS_futex, &value, FUTEX_WAIT, seen, &time, nullptr, 0);
        }
        sleepers.fetch_sub(1);
    }
};

struct alignas(kLine) Place {
    Count pieces;
    std::atomic<uint32_t> has_left;
    uint64_t calls[2];  // what the piece in each buffer belongs to
};

struct Message {
    uint64_t offset;  // in the ring, or kElsewhere
    uint64_t bytes;
    uint64_t end;  // of the ring's bytes so far
};

struct alignas(kLine) Channel {
    alignas(kLine) Count sent;
    alignas(kLine) Count taken;
    Message messages[kMessages];
    alignas(kLine) uint8_t ring[kRing];
};

struct alignas(kLine) Buffers {
    uint8_t bytes[2][kPiece];
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

template <class Number>
Number rounded(float sum) {
    if constexpr (std::is_same_v<Number, Bfloat>) return to_bfloat(sum);
    if constexpr (std::is_same_v<Number, Half>) return to_half(sum);
}

class SharedGroup {
  public:
    static size_t bytes(int size) { return size * (sizeof(Place) + sizeof(Buffers)) + size * size * sizeof(Channel); }

    // `memory` is of `bytes(size)`, and zero when the first rank comes. `pidfds` has one for each rank but this one.
    SharedGroup(uint8_t* memory, int index, int size, const int* pidfds, double seconds, double spin_microseconds)
        : places_(reinterpret_cast<Place*>(memory)),
          buffers_(reinterpret_cast<Buffers*>(memory + size * sizeof(Place))),
          channels_(reinterpret_cast<Channel*>(memory + size * (sizeof(Place) + sizeof(Buffers)))),
          index_(index),
          size_(size),
          pidfds_(pidfds, pidfds + size),
          patience_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
          spin_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(spin_microseconds * 1e-6))),
          pieces_(places_[index].pieces.value.load()),
          used_(size) {}

    ~SharedGroup() { places_[index_].has_left.store(1); }

    // The rank that was waited for in vain, or whose call was different.
    int lost() const { return lost_; }

    Outcome sum(Summed type, uint8_t* x, size_t numbers) {
        switch (type) {
            case Summed::float32: return sum<float, float>(type, x, numbers);
            case Summed::float64: return sum<double, double>(type, x, numbers);
            case Summed::bfloat16: return sum<Bfloat, float>(type, x, numbers);
            case Summed::float16: return sum<Half, float>(type, x, numbers);
            case Summed::int32: return sum<uint32_t, uint32_t>(type, x, numbers);
            case Summed::int64: return sum<uint64_t, uint64_t>(type, x, numbers);
        }
        return Outcome::different;
    }

    // From x [outer, inner] bytes of each rank to `into` [outer, ranks, inner].
    Outcome gather(const uint8_t* x, uint8_t* into, size_t outer, size_t inner) {
        const uint64_t call = kGather ^ inner;
        return in_pieces(outer * inner, [&](size_t at, size_t length) {
            Outcome outcome = give(x + at, length, call);
            for (int rank = 0; rank < size_ && outcome == Outcome::done; rank++) {
                outcome = await(rank, call, length);
                if (outcome != Outcome::done) return outcome;
                const uint8_t* piece = buffer(rank);
                for (size_t done = 0; done < length;) {
                    const size_t row = (at + done) / inner, column = (at + done) % inner;
                    const size_t count = std::min(inner - column, length - done);
                    std::memcpy(into + (row * size_ + rank) * inner + column, piece + done, count);
                    done += count;
                }
            }
            return outcome;
        });
    }

    Outcome broadcast(uint8_t* x, size_t bytes, int source) {
        const uint64_t call = kBroadcast ^ static_cast<uint64_t>(source);
        return in_pieces(bytes, [&](size_t at, size_t length) {
            if (source == index_) return give(x + at, length, call);
            Outcome outcome = give(nullptr, length, call);
            if (outcome == Outcome::done) outcome = await(source, call, length);
            if (outcome == Outcome::done) std::memcpy(x + at, buffer(source), length);
            return outcome;
        });
    }

    // `elsewhere`: there is no room for it now, and the other one knows that it comes by another way.
    Outcome send(const uint8_t* x, size_t bytes, int to) {
        Channel& channel = channels_[index_ * size_ + to];
        const uint32_t number = channel.sent.value.load(std::memory_order_relaxed);
        const Outcome outcome = wait(channel.taken, number - (kMessages - 2), to);
        if (outcome != Outcome::done) return outcome;
        const uint32_t taken = channel.taken.value.load(std::memory_order_acquire);
        const uint64_t freed = taken == 0 && number < kMessages ? 0 : channel.messages[(taken - 1) % kMessages].end;
        const size_t needed = (bytes + kLine - 1) / kLine * kLine;
        uint64_t& used = used_[to];
        uint64_t start = used;
        if (start % kRing + needed > kRing) start += kRing - start % kRing;
        const bool fits = needed <= kRing && start + needed - freed <= kRing;
        if (fits) {
            std::memcpy(channel.ring + start % kRing, x, bytes);
            used = start + needed;
        }
        channel.messages[number % kMessages] = {fits ? start % kRing : kElsewhere, bytes, used};
        channel.sent.raise();
        return fits ? Outcome::done : Outcome::elsewhere;
    }

    Outcome receive(uint8_t* into, size_t bytes, int source) {
        Channel& channel = channels_[source * size_ + index_];
        const uint32_t number = channel.taken.value.load(std::memory_order_relaxed);
        const Outcome outcome = wait(channel.sent, number + 1, source);
        if (outcome != Outcome::done) return outcome;
        const Message message = channel.messages[number % kMessages];
        if (message.bytes != bytes) {
            lost_ = source;
            return Outcome::different;
        }
        if (message.offset != kElsewhere) std::memcpy(into, channel.ring + message.offset, bytes);
        channel.taken.raise();
        return message.offset == kElsewhere ? Outcome::elsewhere : Outcome::done;
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr int kLookMilliseconds = 100;  // how often who sleeps looks whether the others live
    static constexpr uint64_t kSum = uint64_t{1} << 60, kGather = uint64_t{2} << 60, kBroadcast = uint64_t{3} << 60;

    template <class Function>
    static Outcome in_pieces(size_t bytes, const Function& exchange) {
        Outcome outcome = Outcome::done;
        for (size_t at = 0; at < bytes && outcome == Outcome::done; at += kPiece) {
            outcome = exchange(at, std::min(kPiece, bytes - at));
        }
        return outcome;
    }

    template <class Number, class Wide>
    Outcome sum(Summed type, uint8_t* x, size_t numbers) {
        const uint64_t call = kSum ^ static_cast<uint64_t>(type);
        return in_pieces(numbers * sizeof(Number), [&](size_t at, size_t length) {
            Outcome outcome = give(x + at, length, call);
            for (int rank = 0; rank < size_ && outcome == Outcome::done; rank++) outcome = await(rank, call, length);
            if (outcome == Outcome::done) add_up<Number, Wide>(reinterpret_cast<Number*>(x + at), length / sizeof(Number));
            return outcome;
        });
    }

    // The sum of all ranks' pieces. 16-bit numbers are added as float32 and rounded once.
    template <class Number, class Wide>
    void add_up(Number* into, size_t numbers) {
        constexpr size_t kTogether = 1024;
        Wide sums[kTogether];
        for (size_t at = 0; at < numbers; at += kTogether) {
            const size_t count = std::min(kTogether, numbers - at);
            for (int rank = 0; rank < size_; rank++) {
                const Number* piece = reinterpret_cast<const Number*>(buffer(rank)) + at;
                if constexpr (std::is_same_v<Number, Wide>) {
                    if (rank == 0) std::copy_n(piece, count, sums);
                    else for (size_t i = 0; i < count; i++) sums[i] += piece[i];
                } else {
                    if (rank == 0) for (size_t i = 0; i < count; i++) sums[i] = to_float(piece[i]);
                    else for (size_t i = 0; i < count; i++) sums[i] += to_float(piece[i]);
                }
            }
            if constexpr (std::is_same_v<Number, Wide>) std::copy_n(sums, count, into + at);
            else for (size_t i = 0; i < count; i++) into[at + i] = rounded<Number>(sums[i]);
        }
    }

    const uint8_t* buffer(int rank) const { return buffers_[rank].bytes[pieces_ % 2]; }

    // Begins this rank's next piece, whether others read anything of it or not.
    Outcome give(const uint8_t* x, size_t length, uint64_t call) {
        for (int rank = 0; rank < size_; rank++) {  // until nobody reads what was in this buffer
            const Outcome outcome = wait(places_[rank].pieces, pieces_, rank);
            if (outcome != Outcome::done) return outcome;
        }
        pieces_++;
        if (x) std::memcpy(buffers_[index_].bytes[pieces_ % 2], x, length);
        places_[index_].calls[pieces_ % 2] = call ^ static_cast<uint64_t>(length) << 32;
        places_[index_].pieces.raise();
        return Outcome::done;
    }

    // Until that rank has given its piece of this call.
    Outcome await(int rank, uint64_t call, size_t length) {
        const Outcome outcome = wait(places_[rank].pieces, pieces_, rank);
        if (outcome != Outcome::done) return outcome;
        if (places_[rank].calls[pieces_ % 2] == (call ^ static_cast<uint64_t>(length) << 32)) return Outcome::done;
        lost_ = rank;
        return Outcome::different;
    }

    Outcome wait(Count& count, uint32_t target, int rank) {
        if (count.has_reached(target)) return Outcome::done;
        const auto begun = Clock::now();
        do {
            for (int i = 0; i < 32; i++) {
                if (count.has_reached(target)) return Outcome::done;
                pause_briefly();
            }
            sched_yield();
        } while (Clock::now() - begun < spin_);
        while (true) {
            count.sleep(target, kLookMilliseconds);
            if (count.has_reached(target)) return Outcome::done;
            const Outcome outcome = look(rank, begun);
            if (count.has_reached(target)) return Outcome::done;  // it came, and left
            if (outcome != Outcome::done) return outcome;
        }
    }

    // Whether there is sense in waiting for that rank any longer.
    Outcome look(int rank, Clock::time_point begun) {
        for (int other = 0; other < size_; other++) {  // the one that is the cause, rather than who has left because of it
            pollfd ended = {pidfds_[other], POLLIN, 0};
            if (other == index_ || poll(&ended, 1, 0) <= 0 || places_[other].has_left.load()) continue;
            lost_ = other;
            return Outcome::dead;
        }
        lost_ = rank;
        if (places_[rank].has_left.load()) return Outcome::left;
        return Clock::now() - begun < patience_ ? Outcome::done : Outcome::late;
    }

    Place* places_;
    Buffers* buffers_;
    Channel* channels_;
    int index_, size_;
    std::vector<int> pidfds_;
    Clock::duration patience_, spin_;
    uint32_t pieces_;             // that this rank has given
    std::vector<uint64_t> used_;  // bytes of the rings to the others so far, with what was left out at their ends
    int lost_ = -1;
};

}  // namespace trillm
