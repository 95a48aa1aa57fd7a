// Ranks as threads over one shared memory, for the thread sanitizer: what it finds no order for, an ARM processor may
// reorder. Prints nothing; a sum, a message or an outcome that is wrong ends it with 1.

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "shared_group.h"

using trillm::Outcome;
using trillm::SharedGroup;

constexpr int kRanks = 3, kRounds = 150;

void check(bool is_right, const char* what, int round) {
    if (is_right) return;
    std::fprintf(stderr, "%s is wrong in round %d\n", what, round);
    std::exit(1);
}

void run(uint8_t* memory, int index) {
    const int pidfds[kRanks] = {-1, -1, -1};
    SharedGroup group(memory, index, kRanks, pidfds, 30.0, 10.0);
    for (int round = 0; round < kRounds; round++) {
        const size_t size = round % 50 == 0 ? 100'000 : 1 + round % 7;  // pieces have 65,536
        std::vector<float> x(size, static_cast<float>(index + round)), all(size * kRanks), came(size);
        const auto bytes = [](std::vector<float>& numbers) { return reinterpret_cast<uint8_t*>(numbers.data()); };
        const int next = (index + 1) % kRanks, last = (index + kRanks - 1) % kRanks;
        check(group.send(bytes(x), size * 4, next) == Outcome::done, "sending", round);
        check(group.gather(bytes(x), bytes(all), 1, size * 4) == Outcome::done, "gathering", round);
        check(all[size * 2] == static_cast<float>(2 + round), "what was gathered", round);
        check(group.receive(bytes(came), size * 4, last) == Outcome::done, "receiving", round);
        check(came[size - 1] == static_cast<float>(last + round), "the message", round);
        check(group.broadcast(bytes(came), size * 4, round % kRanks) == Outcome::done, "telling", round);
        check(came[0] == static_cast<float>((round % kRanks + kRanks - 1) % kRanks + round), "what was told", round);
        check(group.sum(trillm::Summed::float32, bytes(x), size) == Outcome::done, "summing", round);
        check(x[size - 1] == static_cast<float>(3 + 3 * round), "the sum", round);
    }
}

int main() {
    std::vector<uint8_t> memory(SharedGroup::bytes(kRanks) + trillm::kLine);
    uint8_t* aligned = memory.data() + (trillm::kLine - reinterpret_cast<uintptr_t>(memory.data()) % trillm::kLine);
    std::vector<std::thread> ranks;
    for (int index = 0; index < kRanks; index++) ranks.emplace_back(run, aligned, index);
    for (std::thread& rank : ranks) rank.join();
}
