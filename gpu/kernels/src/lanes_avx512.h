// The vector operations with AVX-512 (F, BW, VL) and VNNI. lanes_plain.h says what each means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "block_x86.h"
#include "half.h"

namespace trillm {

constexpr int kLanes = 16;

struct Floats {
    __m512 value;
};

struct Ints {
    __m512i value;
};

struct Bytes {
    __m512i value;
};

inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Floats load(const Half* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline Floats load(const Bfloat* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a.value); }
inline void store(Half* to, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a.value, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.value, b.value)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.value, b.value)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.value, b.value)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.value, b.value)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.value, b.value)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.value, b.value)}; }
inline Floats nearest(Floats a) {
    return {_mm512_roundscale_ps(a.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats power_of_two(Floats a) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a.value), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

inline __m256 upper_half(__m512 a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }

inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.value), upper_half(a.value));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.value), upper_half(a.value));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline Ints zero() { return {_mm512_setzero_si512()}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.value, b.value)}; }
inline Ints times_256(Ints a) { return {_mm512_slli_epi32(a.value, 8)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.value)}; }

inline __m512i four_everywhere(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

inline void unpack_nibbles(const uint8_t* packed, Bytes (&weights)[8]) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int part = 0; part < 4; part++) {
        const __m512i both = _mm512_loadu_si512(packed + part * 64);
        weights[part].value = _mm512_and_si512(both, low);
        weights[part + 4].value = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
}

// The instruction wants unsigned weights: they are kept as weight + 128, and the sum of the activations corrects it.
inline void load_signed(const uint8_t* from, Bytes (&weights)[8]) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int part = 0; part < 8; part++)
        weights[part].value = _mm512_xor_si512(_mm512_loadu_si512(from + part * 64), sign);
}

inline Ints correction(int32_t x_sum) { return {_mm512_set1_epi32(-128 * x_sum)}; }

// As many at a time as keep the unit busy for the instruction's latency.
template <int kFirst, int kParts, int kDots>
inline void dot_signed(const Bytes (&weights)[8], const int8_t* const (&x)[kDots], Ints (&sums)[kDots]) {
#pragma GCC unroll 8
    for (int part = kFirst; part < kFirst + kParts; part++)
#pragma GCC unroll 8
        for (int i = 0; i < kDots; i++)
            sums[i].value = _mm512_dpbusd_epi32(sums[i].value, weights[part].value, four_everywhere(x[i] + 4 * part));
}

template <int kDots>
inline void dot_nibbles(const Bytes (&weights)[8], const int8_t* const (&x)[kDots], Ints (&sums)[kDots]) {
    dot_signed<0, 8>(weights, x, sums);
}

}  // namespace trillm
