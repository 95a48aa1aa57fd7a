// The operations of a step as records: gpu/kernels/operations.py writes them once per model (and mirrors these structs),
// program.cpp runs them. All pointers are to memory that Python holds.
#pragma once

#include <cstdint>

#include "activations.h"
#include "half.h"
#include "linear.h"
#include "matrix.h"

namespace trillm {

enum class Kind : int32_t { embed = 0, angles, norm, quantise, linear, rotate, attend, gate, lora };

struct Operation {
    Kind kind;
};

// One row of the step plan: tokens [first_token, first_token + tokens) of the flat step, all of one sequence.
struct Span {
    int32_t first_token;
    int32_t tokens;
    int32_t start;        // the first one's position
    int32_t first_block;  // where its block table begins in Step.blocks
};

// Tokens [first_token, first_token + tokens) of the flat step, whose sequences have the adapter in `place`.
struct AdaptedTokens {
    int32_t place;
    int32_t first_token;
    int32_t tokens;
};

struct Step {
    int32_t tokens;
    int32_t spans;
    int32_t tasks;
    int32_t block_size;
    const int32_t* token_ids;  // [tokens]
    const Span* span;          // [spans]
    const int32_t* span_of;    // [tokens]
    const int32_t* blocks;
    const int32_t* task;       // [tasks][3]: span, first token within it, tokens; the pieces that attention works on
    const AdaptedTokens* adapted;  // [num_adapted]
    int32_t num_adapted;
};

// Rows of the embedding.
struct Embed {
    Operation operation;
    Matrix table;
    float* into;  // [tokens][table.columns]
};

// Cosine and sine of each token's position, times `factor`.
struct Angles {
    Operation operation;
    int32_t pairs;
    const float* frequencies;  // [pairs], radians per position
    float factor;
    float* cos;  // [tokens][pairs]
    float* sin;
};

// Root-mean-square norm; quantised too if `quantised` has memory.
struct Norm {
    Operation operation;
    int32_t size;
    const float* x;  // [tokens][size]
    const float* weight;
    float eps;
    float* into;  // [tokens][size]
    Quantised quantised;
};

struct Quantise {
    Operation operation;
    int32_t size;
    const float* x;
    Quantised quantised;
};

struct Linear {
    Operation operation;
    Matrix weight;
    LinearInput in;
    LinearOutput out;
};

struct Heads {
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
};

// Where one layer's cache lies: blocks of [kv_heads][head_dim][block_size] keys and [kv_heads][block_size][head_dim]
// values.
struct Cache {
    Half* keys;
    Half* values;
};

// Norms of queries and keys (or none), rotation, and the new keys and values into the cache.
struct Rotate {
    Operation operation;
    Heads heads;
    float* qkv;  // [tokens][(heads + 2 * kv_heads) * head_dim]; queries are scaled by 1 / sqrt(head_dim)
    const float* cos;
    const float* sin;
    const float* query_norm;  // [head_dim] or null
    const float* key_norm;
    float eps;
    Cache cache;
};

struct Attend {
    Operation operation;
    Heads heads;
    const float* qkv;
    float* into;  // [tokens][heads * head_dim]
    int32_t window;  // positions that a token sees, itself included; 0 is all
    Cache cache;
};

// silu(gate) * up; quantised too if `quantised` has memory.
struct Gate {
    Operation operation;
    int32_t size;
    const float* gate_up;  // [tokens][2 * size]
    float* into;           // [tokens][size]
    Quantised quantised;
};

// What an adapter adds to a projection of x: (x a^T) b^T, both float32. Without data it adds nothing.
struct LowRank {
    Matrix a;  // [rank][columns]
    Matrix b;  // [rows][rank]
};

constexpr int kMaxProjections = 3;

// What adapters add to a linear, which is up to three projections of the same x: nothing to tokens without one.
struct Lora {
    Operation operation;
    int32_t projections;
    int32_t columns;
    const float* x;  // [tokens][columns]
    float* y;        // [tokens][stride]
    int32_t stride;
    int32_t first_row[kMaxProjections];  // of y's columns, by projection
    int32_t max_rank;
    float* between;            // [tokens][projections][max_rank], of what is computed first
    const LowRank* low_ranks;  // [places][projections]
};

}  // namespace trillm
