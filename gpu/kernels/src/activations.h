// Activations as whole numbers: int8 in blocks of 32 with one scale each, per row and never over the batch.
//
// Where the rounding would be felt, what it leaves over is kept as well, in 256ths of a step: together they are as good
// as 15 bits, and the dot product is computed twice.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "lanes.h"

namespace trillm {

constexpr int kBlock = 32;

struct CoarseBlock {
    static constexpr bool kFine = false;
    int8_t values[kBlock];  // -127 to 127
    float scale;
    float scaled_sum;      // scale times the sum of the values
    int32_t half_sums[2];  // sums of 16 values
};

// A number is scale * (256 * value + fine).
struct FineBlock {
    static constexpr bool kFine = true;
    int8_t values[kBlock];
    int8_t fine[kBlock];  // -127 to 127
    float scale;
    float scaled_sum;
    int32_t half_sums[2];  // of 256 * value + fine
};

// Rows of quantised activations, columns / 32 blocks each; one of the two is kept. gpu/kernels/structs.py mirrors it.
//
// Rows lie in panels of a few tokens, [panel][block][token]: a tile of tokens reads one stretch of memory from its
// start to its end.
struct Quantised {
    CoarseBlock* coarse;
    FineBlock* fine;

    bool kept() const { return coarse || fine; }
};

constexpr int kPanelTokens = 16;

// How many tokens a panel has in a step of `tokens`.
inline size_t panel_width(int tokens) {
    return tokens >= kPanelTokens ? kPanelTokens : std::bit_ceil(static_cast<unsigned>(tokens));
}

// Where a row's first block is; the others follow `width` blocks apart.
inline size_t first_block(size_t token, size_t blocks, size_t width) {
    return token / width * width * blocks + token % width;
}

// x[columns] into blocks that are `width` apart. One that holds NaN or infinity gets such a scale, so that nothing
// finite comes of it.
template <class Block>
inline void quantise_row(const float* x, int columns, Block* into, size_t width) {
    constexpr float kTiny = 1e-30f;  // below, the inverse would be infinite
    for (const float* end = x + columns; x < end; x += kBlock, into += width) {
        const float largest = largest_magnitude(x);
        const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
        quantise_block(x, inverse, into->values, into->half_sums);
        into->scale = largest / 127.0f;
        if constexpr (Block::kFine) {
            constexpr float kMost = 127.0f / 256.0f;  // 128 would be no int8
            float left[kBlock];
            for (int i = 0; i < kBlock; i++)
                left[i] = std::min(std::max(x[i] * inverse - static_cast<float>(into->values[i]), -kMost), kMost);
            int32_t sums[2];
            quantise_block(left, 256.0f, into->fine, sums);
            for (int half = 0; half < 2; half++) into->half_sums[half] = into->half_sums[half] * 256 + sums[half];
            into->scale /= 256.0f;
        }
        into->scaled_sum = into->scale * static_cast<float>(into->half_sums[0] + into->half_sums[1]);
    }
}

// Row `token` of a step of `tokens`.
inline void quantise(const float* x, int columns, const Quantised& into, int token, int tokens) {
    const size_t width = panel_width(tokens), first = first_block(token, columns / kBlock, width);
    if (into.fine) quantise_row(x, columns, into.fine + first, width);
    else quantise_row(x, columns, into.coarse + first, width);
}

}  // namespace trillm
