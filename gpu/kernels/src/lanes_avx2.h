// The vector operations with AVX2, FMA and F16C (and AVX-VNNI where it is there). lanes_plain.h says what each means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "block_x86.h"
#include "half.h"

namespace trillm {

constexpr int kLanes = 8;

struct Floats {
    __m256 value;
};

struct Ints {
    __m256i value;
};

struct Bytes {
    __m256i value;
};

inline Floats broadcast(float value) { return {_mm256_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm256_loadu_ps(from)}; }
inline Floats load(const Half* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
inline Floats load(const Bfloat* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a.value); }
inline void store(Half* to, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a.value, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.value, b.value)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.value, b.value)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.value, b.value)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.value, b.value)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.value, b.value, c.value)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.value, b.value)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.value, b.value)}; }
inline Floats nearest(Floats a) {
    return {_mm256_round_ps(a.value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats power_of_two(Floats a) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a.value), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
inline float sum(Floats a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.value), _mm256_extractf128_ps(a.value, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(Floats a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.value), _mm256_extractf128_ps(a.value, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline Ints zero() { return {_mm256_setzero_si256()}; }
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.value, b.value)}; }
inline Ints times_256(Ints a) { return {_mm256_slli_epi32(a.value, 8)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.value)}; }

inline __m256i four_everywhere(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

inline void unpack_nibbles(const uint8_t* packed, Bytes (&weights)[8]) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int part = 0; part < 4; part++) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed) + part);
        weights[part].value = _mm256_and_si256(both, low);
        weights[part + 4].value = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
}

inline void load_signed(const uint8_t* from, Bytes (&weights)[8]) {
    for (int part = 0; part < 8; part++)
        weights[part].value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + part);
}

inline Ints correction(int32_t /*x_sum*/) { return zero(); }

#ifdef __AVXVNNI__

inline Ints dot_nibbles(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    __m256i sum = added_to.value;
    for (int part = 0; part < 8; part++)
        sum = _mm256_dpbusd_avx_epi32(sum, weights[part].value, four_everywhere(x + 4 * part));
    return {sum};
}

#else

inline Ints dot_nibbles(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    // Pairs fit into 16 bits even when all eight parts are added: 16 * 15 * 127 = 30,480.
    __m256i first = _mm256_maddubs_epi16(weights[0].value, four_everywhere(x));
    __m256i second = _mm256_maddubs_epi16(weights[1].value, four_everywhere(x + 4));
    for (int part = 2; part < 8; part += 2) {
        first = _mm256_add_epi16(first, _mm256_maddubs_epi16(weights[part].value, four_everywhere(x + 4 * part)));
        second = _mm256_add_epi16(
            second, _mm256_maddubs_epi16(weights[part + 1].value, four_everywhere(x + 4 * part + 4)));
    }
    const __m256i sum = _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1));
    return {_mm256_add_epi32(added_to.value, sum)};
}

#endif

template <int kFirst, int kParts>
inline Ints dot_signed(const Bytes (&weights)[8], const int8_t* x, Ints added_to) {
    // The instruction wants unsigned weights: the sign moves to the activation. A pair stays below 2 * 128 * 127.
    __m256i total = added_to.value;
    for (int part = kFirst; part < kFirst + kParts; part++) {
        const __m256i weight = weights[part].value;
        const __m256i signed_x = _mm256_sign_epi8(four_everywhere(x + 4 * part), weight);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), signed_x);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return {total};
}

}  // namespace trillm

#include "dots.h"
