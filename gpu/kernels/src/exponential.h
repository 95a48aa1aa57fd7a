// The exponential function of a vector.
#pragma once

#include "lanes.h"

namespace trillm {

// Relative error about 1e-7 between -87 and 88, constant beyond; NaN gives NaN.
// exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, where ln(2) is taken off in two parts, and a polynomial for exp(r).
inline Floats exponential(Floats x) {
    // The bound stands first: max and min give the second where one of them is NaN.
    const Floats bounded = min(broadcast(88.0f), max(broadcast(-87.0f), x));
    const Floats n = nearest(bounded * broadcast(1.44269504f));
    Floats r = fma(n, broadcast(-0.693359375f), bounded);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(1.9875691500e-4f);
    for (const float coefficient :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, broadcast(coefficient));
    p = fma(p, r * r, r + broadcast(1.0f));
    return p * power_of_two(n);
}

}  // namespace trillm
