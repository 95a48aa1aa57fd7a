// Several dot products with the same weights, one after the other: for paths that gain nothing from doing otherwise.
// Their lanes have dot_signed and dot_nibbles for one.
#pragma once

namespace trillm {

template <int kFirst, int kParts, int kDots>
inline void dot_signed(const Bytes (&weights)[8], const int8_t* const (&x)[kDots], Ints (&sums)[kDots]) {
    for (int i = 0; i < kDots; i++) sums[i] = dot_signed<kFirst, kParts>(weights, x[i], sums[i]);
}

template <int kDots>
inline void dot_nibbles(const Bytes (&weights)[8], const int8_t* const (&x)[kDots], Ints (&sums)[kDots]) {
    for (int i = 0; i < kDots; i++) sums[i] = dot_nibbles(weights, x[i], sums[i]);
}

}  // namespace trillm
