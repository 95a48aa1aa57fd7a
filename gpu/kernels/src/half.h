// 16-bit floating-point numbers as they are stored, and their conversion where the processor has no instruction for it.
#pragma once

#include <bit>
#include <cstdint>

namespace trillm {

struct Half {
    uint16_t bits;
};

struct Bfloat {
    uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(Bfloat value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Half value) {
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
    const uint32_t magnitude = value.bits & 0x7fff;
    if (magnitude < 0x0400) {  // zero or subnormal: an integer times 2^-24
        const float small = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(std::bit_cast<uint32_t>(small) | sign);
    }
    if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
}

// Rounds to nearest, ties to even; what is too large becomes infinite.
inline Half to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff))};
    if (magnitude >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 65,536 and above
    if (magnitude < 0x38800000) {                                                // below 2^-14: subnormal
        // Adding 0.5 makes the float's last bit worth 2^-24, which is the half's: the addition rounds.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

// Rounds as to_half does.
inline Bfloat to_bfloat(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace trillm
