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
    const float* x;     // [tokens][columns], what float formats read
    Quantised quantised;  // the same, what quantised formats read
};

struct LinearOutput {
    float* y;           // [tokens][stride]
    int32_t stride;
    int32_t accumulate;  // whether to add to what is there
    const float* bias;  // [rows], or null
};

// Per lane, the weights of a block (or a half of it) times one token's activations in units of their scale.
template <Quantisation Kind, int kHalf>
inline Floats dot(const Bytes (&weights)[8], const int8_t* x, const int32_t* half_sums) {
    if constexpr (Kind::kWeightBytes == 16) return dot_nibbles(weights, x);
    else if constexpr (Kind::kScales == 1) return dot_signed<0, 8>(weights, x, half_sums[0] + half_sums[1]);
    else return dot_signed<kHalf * 4, 4>(weights, x, half_sums[kHalf]);
}

template <int kTokens, bool kFine, Quantisation Kind>
inline void multiply_blocks(const Matrix& w, size_t group, const Quantised& in, size_t token, Floats (&sums)[kTokens]) {
    const size_t blocks = w.columns / kBlock;
    const uint8_t* from = w.data + group * blocks * kBlockBytes<Kind>;
    const Floats step = broadcast(1.0f / kFineSteps);
    for (size_t block = 0; block < blocks; block++, from += kBlockBytes<Kind>) {
        const auto* scales = reinterpret_cast<const typename Kind::Scale*>(from);
        Floats scale[Kind::kScales], minimum;
        for (int i = 0; i < Kind::kScales; i++) scale[i] = load(scales + i * kLanes);
        if constexpr (Kind::kMinimum) minimum = load(scales + Kind::kScales * kLanes);
        Bytes weights[8];
        if constexpr (Kind::kWeightBytes == 16) unpack_nibbles(from + kWeightsOffset<Kind>, weights);
        else load_signed(from + kWeightsOffset<Kind>, weights);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; t++) {
            const size_t at = (token + t) * blocks + block;
            const Floats x_scale = broadcast(in.scales[at]);
            const auto add_half = [&]<int kHalf>() {
                Floats product = dot<Kind, kHalf>(weights, in.values + at * kBlock, in.half_sums + at * 2);
                if constexpr (kFine)
                    product = fma(dot<Kind, kHalf>(weights, in.fine + at * kBlock, in.fine_half_sums + at * 2), step, product);
                sums[t] = fma(product, scale[kHalf] * x_scale, sums[t]);
            };
            add_half.template operator()<0>();
            if constexpr (Kind::kScales == 2) add_half.template operator()<1>();
            if constexpr (Kind::kMinimum) sums[t] = fma(minimum, broadcast(in.scaled_sums[at]), sums[t]);
        }
    }
}

template <int kTokens, Quantisation Kind>
inline void multiply(Kind, const Matrix& w, size_t group, const LinearInput& in, size_t token, Floats (&sums)[kTokens]) {
    if (in.quantised.fine) multiply_blocks<kTokens, true, Kind>(w, group, in.quantised, token, sums);
    else multiply_blocks<kTokens, false, Kind>(w, group, in.quantised, token, sums);
}

template <int kTokens, class Number>
inline void multiply(Number, const Matrix& w, size_t group, const LinearInput& in, size_t token, Floats (&sums)[kTokens]) {
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
inline void tile(Kind kind, const Matrix& w, size_t group, const LinearInput& in, size_t token, const LinearOutput& out) {
    Floats sums[kTokens];
    for (Floats& each : sums) each = broadcast(0.0f);
    multiply<kTokens>(kind, w, group, in, token, sums);
    for (int t = 0; t < kTokens; t++) write(sums[t], w, group, out, token + t);
}

constexpr int kTileTokens = kLanes == 16 ? 8 : 4;  // as many as the registers hold

// Groups [first_group, last_group) of W for tokens [token, last_token).
inline void linear(const Matrix& w, const LinearInput& in, const LinearOutput& out, size_t first_group,
                   size_t last_group, size_t token, size_t last_token) {
    with_format(w.format, [&]<class Kind>(Kind kind) {
        for (size_t group = first_group; group < last_group; group++) {
            size_t t = token;
            for (; t + kTileTokens <= last_token; t += kTileTokens) tile<kTileTokens>(kind, w, group, in, t, out);
            for (; t + 2 <= last_token; t += 2) tile<2>(kind, w, group, in, t, out);
            for (; t < last_token; t++) tile<1>(kind, w, group, in, t, out);
        }
    });
}

}  // namespace trillm
