// Activations as whole numbers: int8 in blocks of 32 with one scale each, per row and never over the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes.h"

namespace trillm {

constexpr int kBlock = 32;

// Rows of quantised activations. For `columns` of them a row has columns / 32 scales. gpu/kernels/structs.py mirrors it.
struct Quantised {
    int8_t* values;        // [rows][columns], -127 to 127
    float* scales;         // [rows][columns / 32]
    float* scaled_sums;    // [rows][columns / 32]: scale times the sum of the block's values
    int32_t* half_sums;    // [rows][columns / 16]: sums of 16 values
};

// x[columns] into row `row`. A block that holds NaN or infinity gets such a scale, so that nothing finite comes of it.
inline void quantise_row(const float* x, int columns, Quantised into, int row) {
    constexpr float kTiny = 1e-30f;  // below, the inverse would be infinite
    const size_t blocks = columns / kBlock;
    int8_t* values = into.values + row * blocks * kBlock;
    float* scales = into.scales + row * blocks;
    float* scaled_sums = into.scaled_sums + row * blocks;
    int32_t* half_sums = into.half_sums + row * blocks * 2;
    for (size_t block = 0; block < blocks; block++) {
        const float largest = largest_magnitude(x + block * kBlock);
        const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
        quantise_block(x + block * kBlock, inverse, values + block * kBlock, half_sums + block * 2);
        scales[block] = largest / 127.0f;
        scaled_sums[block] = scales[block] * static_cast<float>(half_sums[block * 2] + half_sums[block * 2 + 1]);
    }
}

}  // namespace trillm
