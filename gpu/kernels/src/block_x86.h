// Quantising blocks of 32 activations with AVX2, for both paths of x86.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

namespace trillm {

inline int32_t sum_of_ints(__m256i a) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b01'00'11'10));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0b10'11'00'01));
    return _mm_cvtsi128_si32(four);
}

// The largest magnitude of 32 numbers; NaN if one of them is: as whole numbers, NaN's bits are the largest.
inline float largest_magnitude(const float* x) {
    const __m256i without_sign = _mm256_set1_epi32(0x7fffffff);
    __m256i bits = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
        const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        bits = _mm256_max_epi32(bits, _mm256_and_si256(eight, without_sign));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b01'00'11'10));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0b10'11'00'01));
    return std::bit_cast<float>(_mm_cvtsi128_si32(four));
}

// Rounds 32 numbers times `inverse` to whole ones; `sums` are those of the two halves.
inline void quantise_block(const float* x, float inverse, int8_t* values, int32_t sums[2]) {
    const __m256 factor = _mm256_set1_ps(inverse);
    __m256i whole[4];
    for (int i = 0; i < 4; i++) whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
    // NaN becomes the least number there is; what is summed is the -128 that it ends as.
    const __m256i least = _mm256_set1_epi16(-128);
    const __m256i first = _mm256_max_epi16(_mm256_packs_epi32(whole[0], whole[1]), least);
    const __m256i second = _mm256_max_epi16(_mm256_packs_epi32(whole[2], whole[3]), least);
    // Packing works in halves of a register; this puts the groups of four back in order.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values), packed);
    sums[0] = sum_of_ints(_mm256_madd_epi16(first, _mm256_set1_epi16(1)));
    sums[1] = sum_of_ints(_mm256_madd_epi16(second, _mm256_set1_epi16(1)));
}

}  // namespace trillm
