// Activations as whole numbers: int8 in blocks of 32 with one scale each, per row and never over the batch.
//
// Where the rounding would be felt, what it leaves over is kept as well, in 254ths of a step: together they are as good
// as 15 bits, and the dot product is computed twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes.h"

namespace trillm {

constexpr int kBlock = 32;
constexpr float kFineSteps = 254.0f;

// Rows of quantised activations. For `columns` of them a row has columns / 32 scales. gpu/kernels/structs.py mirrors it.
struct Quantised {
    int8_t* values;        // [rows][columns], -127 to 127
    float* scales;         // [rows][columns / 32]
    float* scaled_sums;    // [rows][columns / 32]: scale times the sum of the block's values
    int32_t* half_sums;    // [rows][columns / 16]: sums of 16 values
    int8_t* fine;            // like values: what they leave over, or null
    int32_t* fine_half_sums;
};

// x[columns] into row `row`. A block that holds NaN or infinity gets such a scale, so that nothing finite comes of it.
inline void quantise_row(const float* x, int columns, Quantised into, int row) {
    constexpr float kTiny = 1e-30f;  // below, the inverse would be infinite
    const size_t blocks = columns / kBlock;
    int8_t* values = into.values + row * blocks * kBlock;
    float* scales = into.scales + row * blocks;
    float* scaled_sums = into.scaled_sums + row * blocks;
    int32_t* half_sums = into.half_sums + row * blocks * 2;
    int8_t* fine = into.fine ? into.fine + row * blocks * kBlock : nullptr;
    int32_t* fine_half_sums = into.fine ? into.fine_half_sums + row * blocks * 2 : nullptr;
    for (size_t block = 0; block < blocks; block++) {
        const float largest = largest_magnitude(x + block * kBlock);
        const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
        const int32_t* sums = half_sums + block * 2;
        quantise_block(x + block * kBlock, inverse, values + block * kBlock, half_sums + block * 2);
        float sum = static_cast<float>(sums[0] + sums[1]);
        if (fine) {
            float left[kBlock];
            const int8_t* rounded = values + block * kBlock;
            for (int i = 0; i < kBlock; i++) left[i] = x[block * kBlock + i] * inverse - static_cast<float>(rounded[i]);
            quantise_block(left, kFineSteps, fine + block * kBlock, fine_half_sums + block * 2);
            sum += static_cast<float>(fine_half_sums[block * 2] + fine_half_sums[block * 2 + 1]) / kFineSteps;
        }
        scales[block] = largest / 127.0f;
        scaled_sums[block] = scales[block] * sum;
    }
}

}  // namespace trillm
