// Weight matrices as they are laid out once (gpu/kernels/layout.py) and then only read.
//
// Rows are interleaved by kLanes, so that one vector holds the same column of kLanes rows. A group of kLanes rows is
// contiguous; in a quantised one, each block of 32 columns has its scales, then its minimums if it has any, then the
// weights in parts of [row][4 columns].
#pragma once

#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "half.h"
#include "lanes.h"

namespace trillm {

// The numbers are those of gpu/kernels/layout.py.
enum class Format : int32_t {
    nibbles = 0,         // 0 to 15 times a scale plus a minimum, both float16: Q4_0, Q4_1
    nibbles_float = 1,   // the same with float32: Q4_K
    bytes = 2,           // int8 times a float16 scale: Q8_0
    bytes_minimum = 3,   // int8 times a scale plus a minimum, both float32: Q5_K
    bytes_halves = 4,    // int8 with a float32 scale for 16 columns each: Q6_K
    float16 = 5,         // [column][row]
    bfloat16 = 6,
    float32 = 7,
};

struct Matrix {
    const uint8_t* data;
    Format format;
    int32_t rows;
    int32_t columns;
};

struct Nibbles {
    using Scale = Half;
    static constexpr int kScales = 1;        // per block
    static constexpr bool kMinimum = true;
    static constexpr int kWeightBytes = 16;  // per row and block
};
struct NibblesFloat : Nibbles {
    using Scale = float;
};
struct SignedBytes {
    using Scale = Half;
    static constexpr int kScales = 1;
    static constexpr bool kMinimum = false;
    static constexpr int kWeightBytes = 32;
};
struct SignedBytesMinimum : SignedBytes {
    using Scale = float;
    static constexpr bool kMinimum = true;
};
struct SignedBytesHalves : SignedBytes {
    using Scale = float;
    static constexpr int kScales = 2;
};

template <class Kind>
constexpr size_t kWeightsOffset = (Kind::kScales + Kind::kMinimum) * kLanes * sizeof(typename Kind::Scale);
template <class Kind>
constexpr size_t kBlockBytes = kWeightsOffset<Kind> + kLanes * Kind::kWeightBytes;

// Calls `function` with the tag (or the number's type) of the format.
template <class Function>
inline void with_format(Format format, Function function) {
    switch (format) {
        case Format::nibbles: return function(Nibbles{});
        case Format::nibbles_float: return function(NibblesFloat{});
        case Format::bytes: return function(SignedBytes{});
        case Format::bytes_minimum: return function(SignedBytesMinimum{});
        case Format::bytes_halves: return function(SignedBytesHalves{});
        case Format::float16: return function(Half{});
        case Format::bfloat16: return function(Bfloat{});
        case Format::float32: return function(float{});
    }
}

template <class Kind>
concept Quantisation = requires { Kind::kWeightBytes; };

// One row as numbers: into[columns].
inline void read_row(const Matrix& matrix, int row, float* into) {
    const size_t group = row / kLanes, lane = row % kLanes;
    with_format(matrix.format, [&]<class Kind>(Kind) {
        if constexpr (Quantisation<Kind>) {
            const size_t blocks = matrix.columns / kBlock;
            for (size_t block = 0; block < blocks; block++) {
                const uint8_t* from = matrix.data + (group * blocks + block) * kBlockBytes<Kind>;
                const auto* scales = reinterpret_cast<const typename Kind::Scale*>(from);
                const uint8_t* weights = from + kWeightsOffset<Kind>;
                const float minimum = Kind::kMinimum ? to_float(scales[Kind::kScales * kLanes + lane]) : 0.0f;
                for (size_t column = 0; column < kBlock; column++) {
                    float weight;
                    if constexpr (Kind::kWeightBytes == 16) {
                        const size_t low = column % 16;
                        const uint8_t both = weights[(low / 4 * kLanes + lane) * 4 + low % 4];
                        weight = column < 16 ? both & 15 : both >> 4;
                    } else {
                        weight = static_cast<int8_t>(weights[(column / 4 * kLanes + lane) * 4 + column % 4]);
                    }
                    const float scale = to_float(scales[column * Kind::kScales / kBlock * kLanes + lane]);
                    into[block * kBlock + column] = weight * scale + minimum;
                }
            }
        } else {
            const auto* from = reinterpret_cast<const Kind*>(matrix.data) + group * matrix.columns * kLanes + lane;
            for (int column = 0; column < matrix.columns; column++) into[column] = to_float(from[column * kLanes]);
        }
    });
}

}  // namespace trillm
