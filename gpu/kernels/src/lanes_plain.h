// The vector operations in plain C++: for processors without a path of their own, and what the others are tested against.
//
// Floats: kLanes numbers. Bytes: kLanes times four neighbouring weights of a row, one byte each.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace trillm {

#ifdef TRILLM_PLAIN_LANES
constexpr int kLanes = TRILLM_PLAIN_LANES;
#else
constexpr int kLanes = 8;
#endif

struct Floats {
    float lane[kLanes];
};

struct Ints {
    int32_t lane[kLanes];
};

struct Bytes {
    uint8_t byte[kLanes][4];
};

template <class Function>
inline Floats each_lane(Function function) {
    Floats result;
    for (int i = 0; i < kLanes; i++) result.lane[i] = function(i);
    return result;
}

inline Floats broadcast(float value) {
    return each_lane([&](int) { return value; });
}
inline Floats load(const float* from) {
    return each_lane([&](int i) { return from[i]; });
}
inline Floats load(const Half* from) {
    return each_lane([&](int i) { return to_float(from[i]); });
}
inline Floats load(const Bfloat* from) {
    return each_lane([&](int i) { return to_float(from[i]); });
}
inline void store(float* to, Floats a) { std::memcpy(to, a.lane, sizeof a.lane); }
inline void store(Half* to, Floats a) {
    for (int i = 0; i < kLanes; i++) to[i] = to_half(a.lane[i]);
}
inline Floats operator+(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats operator-(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Floats operator*(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats operator/(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
// a * b + c, rounded once.
inline Floats fma(Floats a, Floats b, Floats c) {
    return each_lane([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
// The second one where either is NaN, as x86 has it.
inline Floats max(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(Floats a, Floats b) {
    return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats nearest(Floats a) {
    return each_lane([&](int i) { return std::nearbyint(a.lane[i]); });
}
// 2 to the power of whole numbers between -126 and 127.
inline Floats power_of_two(Floats a) {
    return each_lane([&](int i) {
        return std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(a.lane[i]) + 127) << 23);
    });
}

template <class Combine>
inline float folded(Floats a, Combine combine) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] = combine(a.lane[i], a.lane[i + half]);
    return a.lane[0];
}
inline float sum(Floats a) {
    return folded(a, [](float x, float y) { return x + y; });
}
inline float largest(Floats a) {
    return folded(a, [](float x, float y) { return x > y ? x : y; });
}

// The largest magnitude of 32 numbers; NaN if one of them is: as whole numbers, NaN's bits are the largest.
inline float largest_magnitude(const float* x) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
    return std::bit_cast<float>(bits);
}

// Rounds 32 numbers times `inverse` to whole ones; `sums` are those of the two halves.
inline void quantise_block(const float* x, float inverse, int8_t* values, int32_t sums[2]) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 32; i++) {
        const float scaled = x[i] * inverse;
        const float whole = std::nearbyint(scaled);
        values[i] = whole >= -128.0f && whole <= 127.0f ? static_cast<int8_t>(whole) : int8_t{-128};
        sums[i / 16] += values[i];
    }
}

// 16 bytes of each lane, in four parts of [lane][4]: low nibbles are weights 0 to 15, high ones 16 to 31.
inline void unpack_nibbles(const uint8_t* packed, Bytes (&weights)[8]) {
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < kLanes; i++)
            for (int j = 0; j < 4; j++) {
                const uint8_t both = packed[(part * kLanes + i) * 4 + j];
                weights[part].byte[i][j] = both & 15;
                weights[part + 4].byte[i][j] = both >> 4;
            }
}

// 32 signed bytes of each lane, in eight parts of [lane][4].
inline void load_signed(const uint8_t* from, Bytes (&weights)[8]) { std::memcpy(weights, from, sizeof weights); }

inline Ints zero() { return {}; }
inline Ints operator+(Ints a, Ints b) {
    for (int i = 0; i < kLanes; i++) a.lane[i] += b.lane[i];
    return a;
}
inline Ints times_256(Ints a) {
    for (int32_t& lane : a.lane) lane *= 256;
    return a;
}
inline Floats to_floats(Ints a) {
    return each_lane([&](int i) { return static_cast<float>(a.lane[i]); });
}

// What dot_signed needs to be added for activations whose sum is `x_sum`.
inline Ints correction(int32_t /*x_sum*/) { return zero(); }

// Per lane, the dot product of `kParts` * 4 signed weights with activations, added to `added_to`.
template <int kFirst, int kParts>
inline Ints dot_signed(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    for (int i = 0; i < kLanes; i++)
        for (int part = kFirst; part < kFirst + kParts; part++)
            for (int j = 0; j < 4; j++)
                added_to.lane[i] += static_cast<int8_t>(weights[part].byte[i][j]) * x[part * 4 + j];
    return added_to;
}

// The same for 32 weights of 0 to 15.
inline Ints dot_nibbles(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    return dot_signed<0, 8>(weights, x, added_to);
}

}  // namespace trillm

#include "dots.h"
