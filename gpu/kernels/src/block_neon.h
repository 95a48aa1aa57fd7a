// Quantising blocks of 32 activations with NEON.
#pragma once

#include <arm_neon.h>

#include <bit>
#include <cstdint>

namespace trillm {

// The largest magnitude of 32 numbers; NaN if one of them is: as whole numbers, NaN's bits are the largest.
inline float largest_magnitude(const float* x) {
    uint32x4_t bits = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4) bits = vmaxq_u32(bits, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    return std::bit_cast<float>(vmaxvq_u32(bits));
}

// Four numbers rounded to whole ones. NaN, which the instruction takes for 0, becomes -128 as elsewhere: a block that
// holds it has a scale that is not finite either, and nothing times infinity is NaN where it should be infinite.
inline int32x4_t rounded(float32x4_t x) {
    return vbslq_s32(vceqq_f32(x, x), vcvtnq_s32_f32(x), vdupq_n_s32(-128));
}

// Rounds 32 numbers times `inverse` to whole ones; `sums` are those of the two halves.
inline void quantise_block(const float* x, float inverse, int8_t* values, int32_t sums[2]) {
    for (int half = 0; half < 2; half++) {
        int16x4_t four[4];
        for (int i = 0; i < 4; i++)
            four[i] = vqmovn_s32(rounded(vmulq_n_f32(vld1q_f32(x + 16 * half + 4 * i), inverse)));
        const int8x16_t packed = vcombine_s8(vqmovn_s16(vcombine_s16(four[0], four[1])),
                                             vqmovn_s16(vcombine_s16(four[2], four[3])));
        vst1q_s8(values + 16 * half, packed);
        sums[half] = vaddlvq_s8(packed);
    }
}

}  // namespace trillm
