// The widest vector operations that the compiler's target has.
//
// Every path computes the same numbers to the last bit for the same kLanes: products and sums of whole numbers are
// exact, and floating-point operations come in the same order with explicit fused multiply-adds (the build forbids
// others). TRILLM_PLAIN_LANES asks for the plain path.
#pragma once

#if defined(TRILLM_PLAIN_LANES)
#include "lanes_plain.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "lanes_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "lanes_avx2.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include "lanes_neon.h"
#else
#include "lanes_plain.h"
#endif
