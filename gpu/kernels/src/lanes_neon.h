// The vector operations with 64-bit ARM's NEON (and its dot products where there are any). lanes_plain.h says what each
// means. Emulated so far, never run on an ARM processor.
//
// Lanes fill two registers: with one, activations would be loaded twice as often for as many products.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "block_neon.h"
#include "half.h"

namespace trillm {

constexpr int kLanes = 8;

struct Floats {
    float32x4_t low;
    float32x4_t high;
};

struct Ints {
    int32x4_t low;
    int32x4_t high;
};

struct Bytes {
    int8x16_t low;
    int8x16_t high;
};

inline Floats broadcast(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
inline Floats load(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
inline Floats load(const Half* from) {
    const float16x8_t eight = vreinterpretq_f16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(from)));
    return {vcvt_f32_f16(vget_low_f16(eight)), vcvt_high_f32_f16(eight)};
}
inline Floats load(const Bfloat* from) {
    const uint16x8_t eight = vld1q_u16(reinterpret_cast<const uint16_t*>(from));
    return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(eight)), 16)),
            vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(eight), 16))};
}
inline void store(float* to, Floats a) {
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
}
inline void store(Half* to, Floats a) {
    const float16x8_t eight = vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high);
    vst1q_u16(reinterpret_cast<uint16_t*>(to), vreinterpretq_u16_f16(eight));
}
inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

// Not vmax and vmin: those give NaN where either is, and order the zeros.
inline float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Floats max(Floats a, Floats b) { return {max(a.low, b.low), max(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {min(a.low, b.low), min(a.high, b.high)}; }

inline Floats nearest(Floats a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
inline float32x4_t power_of_two(float32x4_t a) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127)), 23));
}
inline Floats power_of_two(Floats a) { return {power_of_two(a.low), power_of_two(a.high)}; }
inline float sum(Floats a) {
    const float32x4_t four = vaddq_f32(a.low, a.high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(Floats a) {
    const float32x4_t four = max(a.low, a.high);
    const float32x4_t two = max(four, vextq_f32(four, four, 2));
    const float first = vgetq_lane_f32(two, 0), second = vgetq_lane_f32(two, 1);
    return first > second ? first : second;
}

inline Ints zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline Ints operator+(Ints a, Ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline Ints times_256(Ints a) { return {vshlq_n_s32(a.low, 8), vshlq_n_s32(a.high, 8)}; }
inline Floats to_floats(Ints a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }

inline void unpack_nibbles(const uint8_t* packed, Bytes (&weights)[8]) {
    const uint8x16_t low = vdupq_n_u8(15);
    for (int part = 0; part < 4; part++) {
        const uint8x16_t first = vld1q_u8(packed + part * 32), second = vld1q_u8(packed + part * 32 + 16);
        weights[part] = {vreinterpretq_s8_u8(vandq_u8(first, low)), vreinterpretq_s8_u8(vandq_u8(second, low))};
        weights[part + 4] = {vreinterpretq_s8_u8(vshrq_n_u8(first, 4)), vreinterpretq_s8_u8(vshrq_n_u8(second, 4))};
    }
}

inline void load_signed(const uint8_t* from, Bytes (&weights)[8]) {
    for (int part = 0; part < 8; part++)
        weights[part] = {vreinterpretq_s8_u8(vld1q_u8(from + part * 32)),
                         vreinterpretq_s8_u8(vld1q_u8(from + part * 32 + 16))};
}

inline Ints correction(int32_t /*x_sum*/) { return zero(); }

#ifdef __ARM_FEATURE_DOTPROD

template <int kFirst, int kParts>
inline Ints dot_signed(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    // The instruction takes a part's activations, which all lanes share, from a quarter of a register.
    int8x16_t four_parts[kParts / 4];
    for (int i = 0; i < kParts / 4; i++) four_parts[i] = vld1q_s8(x + 4 * kFirst + 16 * i);
    auto [low, high] = added_to;
    [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
        ((low = vdotq_laneq_s32(low, weights[kFirst + kPart].low, four_parts[kPart / 4], kPart % 4),
          high = vdotq_laneq_s32(high, weights[kFirst + kPart].high, four_parts[kPart / 4], kPart % 4)),
         ...);
    }(std::make_integer_sequence<int, kParts>{});
    return {low, high};
}

inline Ints dot_nibbles(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    return dot_signed<0, 8>(weights, x, added_to);
}

#else

inline int8x16_t four_everywhere(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

inline Ints dot_nibbles(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    // A byte's products fit into 16 bits even when all eight parts are added: 8 * 15 * 128 = 15,360.
    int16x8_t sums[4] = {vdupq_n_s16(0), vdupq_n_s16(0), vdupq_n_s16(0), vdupq_n_s16(0)};  // of two lanes each
    for (int part = 0; part < 8; part++) {
        const int8x16_t four = four_everywhere(x + 4 * part);
        sums[0] = vmlal_s8(sums[0], vget_low_s8(weights[part].low), vget_low_s8(four));
        sums[1] = vmlal_high_s8(sums[1], weights[part].low, four);
        sums[2] = vmlal_s8(sums[2], vget_low_s8(weights[part].high), vget_low_s8(four));
        sums[3] = vmlal_high_s8(sums[3], weights[part].high, four);
    }
    return added_to + Ints{vpaddq_s32(vpaddlq_s16(sums[0]), vpaddlq_s16(sums[1])),
                           vpaddq_s32(vpaddlq_s16(sums[2]), vpaddlq_s16(sums[3]))};
}

template <int kFirst, int kParts>
inline Ints dot_signed(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    // One product fits into 16 bits, two may not: pairs are added in 32.
    int32x4_t sums[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};  // of two lanes each
    for (int part = kFirst; part < kFirst + kParts; part++) {
        const int8x16_t four = four_everywhere(x + 4 * part);
        sums[0] = vpadalq_s16(sums[0], vmull_s8(vget_low_s8(weights[part].low), vget_low_s8(four)));
        sums[1] = vpadalq_s16(sums[1], vmull_high_s8(weights[part].low, four));
        sums[2] = vpadalq_s16(sums[2], vmull_s8(vget_low_s8(weights[part].high), vget_low_s8(four)));
        sums[3] = vpadalq_s16(sums[3], vmull_high_s8(weights[part].high, four));
    }
    return added_to + Ints{vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3])};
}

#endif

}  // namespace trillm

#include "dots.h"
