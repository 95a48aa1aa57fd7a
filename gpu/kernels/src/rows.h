// What is done to one token's row between the linears: norm, rotation, gate.
#pragma once

#include <cmath>
#include <cstddef>

#include "exponential.h"
#include "lanes.h"

namespace trillm {

// x / rms(x) * weight, [size] with size a multiple of kLanes; `into` may be x.
inline void rms_norm(const float* x, const float* weight, float eps, int size, float* into) {
    Floats squares = broadcast(0.0f);
    for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    const Floats factor = broadcast(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps));
    for (int i = 0; i < size; i += kLanes) store(into + i, load(x + i) * factor * load(weight + i));
}

// Turns the pairs (i, i + size / 2) of one head, in place; cos and sin have [size / 2].
inline void rotate(float* head, const float* cos, const float* sin, int size) {
    const int pairs = size / 2;
    for (int i = 0; i < pairs; i++) {
        const float first = head[i], second = head[i + pairs];
        head[i] = first * cos[i] - second * sin[i];
        head[i + pairs] = second * cos[i] + first * sin[i];
    }
}

// silu(gate) * up: `gate_up` has both one after the other, each [size].
inline void gated_silu(const float* gate_up, int size, float* into) {
    const Floats one = broadcast(1.0f), zero = broadcast(0.0f);
    for (int i = 0; i < size; i += kLanes) {
        const Floats gate = load(gate_up + i);
        store(into + i, gate / (one + exponential(zero - gate)) * load(gate_up + size + i));
    }
}

}  // namespace trillm
