// y = x W^T (+ bias) (+ y): the one place where weights meet activations.
//
// A tile is kLanes rows of W times a few tokens: the weights of a block are unpacked once for all of them. A token's
// arithmetic is the same in a tile of any size: one chain of fused multiply-adds along the columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "activations.h"
#include "lanes.h"
#include "matrix.h"

namespace trillm {

struct LinearInput {
    const float* x;       // [tokens][columns], what float formats read
    Quantised quantised;  // the same, what quantised formats read
};

struct LinearOutput {
    float* y;           // [tokens][stride]
    int32_t stride;
    int32_t accumulate;  // whether to add to what is there
    const float* bias;  // [rows], or null
};

// Per lane, the weights of a block (or a half of it) times the activations of kTokens tokens in units of their scale.
template <Quantisation Kind, int kHalf, int kTokens, class Block>
inline void dot(const Bytes (&weights)[8], const Block* x, Floats (&products)[kTokens]) {
    constexpr bool kNibbles = Kind::kWeightBytes == 16;
    constexpr int kParts = Kind::kScales == 1 ? 8 : 4, kFirst = kHalf * kParts;
    constexpr int kDots = Block::kFine ? 2 * kTokens : kTokens;
    const int8_t* values[kDots];
    Ints sums[kDots];
    for (int t = 0; t < kTokens; t++) {
        values[t] = x[t].values;
        sums[t] = zero();
        if constexpr (!kNibbles)
            sums[t] = correction(Kind::kScales == 1 ? x[t].half_sums[0] + x[t].half_sums[1] : x[t].half_sums[kHalf]);
        if constexpr (Block::kFine) {
            values[kTokens + t] = x[t].fine;
            sums[kTokens + t] = sums[t];
            sums[t] = zero();
        }
    }
    if constexpr (kNibbles) dot_nibbles<kDots>(weights, values, sums);
    else dot_signed<kFirst, kParts, kDots>(weights, values, sums);
    for (int t = 0; t < kTokens; t++) {
        if constexpr (Block::kFine) sums[t] = times_256(sums[t]) + sums[kTokens + t];
        products[t] = to_floats(sums[t]);
    }
}

template <int kTokens, Quantisation Kind, class Block>
inline void multiply_blocks(const Matrix& w, size_t group, const Block* x, size_t width, Floats (&sums)[kTokens]) {
    constexpr int kTogether = kTokens > 1 ? 2 : 1;
    const size_t blocks = w.columns / kBlock;
    const uint8_t* from = w.data + group * blocks * kBlockBytes<Kind>;
    for (size_t block = 0; block < blocks; block++, from += kBlockBytes<Kind>, x += width) {
        const auto* scales = reinterpret_cast<const typename Kind::Scale*>(from);
        Floats scale[Kind::kScales], minimum;
        for (int i = 0; i < Kind::kScales; i++) scale[i] = load(scales + i * kLanes);
        if constexpr (Kind::kMinimum) minimum = load(scales + Kind::kScales * kLanes);
        Bytes weights[8];
        if constexpr (Kind::kWeightBytes == 16) unpack_nibbles(from + kWeightsOffset<Kind>, weights);
        else load_signed(from + kWeightsOffset<Kind>, weights);
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; t += kTogether) {
            Floats products[kTogether];
            dot<Kind, 0>(weights, x + t, products);
            for (int i = 0; i < kTogether; i++)
                sums[t + i] = fma(products[i], scale[0] * broadcast(x[t + i].scale), sums[t + i]);
            if constexpr (Kind::kScales == 2) {
                dot<Kind, 1>(weights, x + t, products);
                for (int i = 0; i < kTogether; i++)
                    sums[t + i] = fma(products[i], scale[1] * broadcast(x[t + i].scale), sums[t + i]);
            }
            if constexpr (Kind::kMinimum)
                for (int i = 0; i < kTogether; i++)
                    sums[t + i] = fma(minimum, broadcast(x[t + i].scaled_sum), sums[t + i]);
        }
    }
}

template <int kTokens, Quantisation Kind>
inline void multiply(Kind, const Matrix& w, size_t group, const LinearInput& in, size_t width, size_t token,
                     Floats (&sums)[kTokens]) {
    const size_t first = first_block(token, w.columns / kBlock, width);
    if (in.quantised.fine) multiply_blocks<kTokens, Kind>(w, group, in.quantised.fine + first, width, sums);
    else multiply_blocks<kTokens, Kind>(w, group, in.quantised.coarse + first, width, sums);
}

template <int kTokens, class Number>
inline void multiply(Number, const Matrix& w, size_t group, const LinearInput& in, size_t /*width*/, size_t token,
                     Floats (&sums)[kTokens]) {
    const auto* from = reinterpret_cast<const Number*>(w.data) + group * w.columns * kLanes;
    const float* x = in.x + token * w.columns;
    for (size_t column = 0; column < static_cast<size_t>(w.columns); column++) {
        const Floats weight = load(from + column * kLanes);
        for (int t = 0; t < kTokens; t++) sums[t] = fma(weight, broadcast(x[t * w.columns + column]), sums[t]);
    }
}

// kLanes numbers of one token; the last group of a matrix may have fewer rows.
inline void write(Floats sums, const Matrix& w, size_t group, const LinearOutput& out, size_t token) {
    const size_t first = group * kLanes, count = std::min<size_t>(kLanes, w.rows - first);
    float* y = out.y + token * out.stride + first;
    if (count == kLanes) {
        if (out.bias) sums = sums + load(out.bias + first);
        store(y, out.accumulate ? load(y) + sums : sums);
        return;
    }
    float some[kLanes];
    store(some, sums);
    for (size_t i = 0; i < count; i++) {
        const float biased = out.bias ? some[i] + out.bias[first + i] : some[i];
        y[i] = out.accumulate ? y[i] + biased : biased;
    }
}

template <int kTokens, class Kind>
inline void tile(Kind kind, const Matrix& w, size_t group, const LinearInput& in, size_t width, size_t token,
                 const LinearOutput& out) {
    Floats sums[kTokens];
    for (Floats& each : sums) each = broadcast(0.0f);
    multiply<kTokens>(kind, w, group, in, width, token, sums);
    for (int t = 0; t < kTokens; t++) write(sums[t], w, group, out, token + t);
}

// Tokens of the largest tile: as many as the registers hold.
constexpr int kTileTokens = kLanes == 16 ? 16 : 4;

// Groups [first_group, last_group) of W for tokens [token, last_token), of which `token` starts a panel; panels are
// `width` tokens wide.
inline void linear(const Matrix& w, const LinearInput& in, size_t width, const LinearOutput& out, size_t first_group,
                   size_t last_group, size_t token, size_t last_token) {
    with_format(w.format, [&]<class Kind>(Kind kind) {
        for (size_t group = first_group; group < last_group; group++) {
            size_t t = token;
            for (; t + kTileTokens <= last_token; t += kTileTokens) tile<kTileTokens>(kind, w, group, in, width, t, out);
            if constexpr (kTileTokens > 8)
                for (; t + 8 <= last_token; t += 8) tile<8>(kind, w, group, in, width, t, out);
            if constexpr (kTileTokens > 4)
                for (; t + 4 <= last_token; t += 4) tile<4>(kind, w, group, in, width, t, out);
            for (; t + 2 <= last_token; t += 2) tile<2>(kind, w, group, in, width, t, out);
            for (; t < last_token; t++) tile<1>(kind, w, group, in, width, t, out);
        }
    });
}

}  // namespace trillm
