// Runs a list of operations, each on all threads of a pool: what gpu/kernels/library.py calls. And what
// gpu/groups/shared_group.py calls.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "attention.h"
#include "linear.h"
#include "matrix.h"
#include "operations.h"
#include "pool.h"
#include "rows.h"

#if defined(__linux__)
#include "shared_group.h"
#endif

namespace trillm {
namespace {

int divided_up(int number, int by) { return (number + by - 1) / by; }

// Calls function(token) for all tokens, in chunks of about 16,384 numbers: a few microseconds each.
template <class Function>
void for_each_token(Pool& pool, const Step& step, int row_size, const Function& function) {
    const int together = std::max(1, 16384 / row_size);
    pool.run(divided_up(step.tokens, together), [&](int chunk) {
        const int last = std::min(step.tokens, (chunk + 1) * together);
        for (int token = chunk * together; token < last; token++) function(token);
    });
}

void run(const Embed& op, const Step& step, Pool& pool) {
    for_each_token(pool, step, op.table.columns, [&](int token) {
        read_row(op.table, step.token_ids[token], op.into + static_cast<size_t>(token) * op.table.columns);
    });
}

int position_of(const Step& step, int token) {
    const Span& span = step.span[step.span_of[token]];
    return span.start + token - span.first_token;
}

void run(const Angles& op, const Step& step, Pool& pool) {
    for_each_token(pool, step, op.pairs * 16, [&](int token) {
        const float position = static_cast<float>(position_of(step, token));
        for (int i = 0; i < op.pairs; i++) {
            const float angle = position * op.frequencies[i];
            op.cos[token * op.pairs + i] = std::cos(angle) * op.factor;
            op.sin[token * op.pairs + i] = std::sin(angle) * op.factor;
        }
    });
}

void run(const Norm& op, const Step& step, Pool& pool) {
    for_each_token(pool, step, op.size, [&](int token) {
        float* into = op.into + static_cast<size_t>(token) * op.size;
        rms_norm(op.x + static_cast<size_t>(token) * op.size, op.weight, op.eps, op.size, into);
        if (op.quantised.kept()) quantise(into, op.size, op.quantised, token, step.tokens);
    });
}

void run(const Quantise& op, const Step& step, Pool& pool) {
    for_each_token(pool, step, op.size, [&](int token) {
        quantise(op.x + static_cast<size_t>(token) * op.size, op.size, op.quantised, token, step.tokens);
    });
}

// Chunks are some groups of rows times at most 64 tokens, whose activations stay in the cache meanwhile.
void run(const Linear& op, const Step& step, Pool& pool) {
    constexpr int kTokens = 64;
    constexpr int kChunksPerThread = 6;
    constexpr int kLeast = 1 << 17;  // multiplications that are worth a chunk
    const int groups = divided_up(op.weight.rows, kLanes);
    const int token_tiles = divided_up(step.tokens, kTokens);
    const int64_t group_work = static_cast<int64_t>(kLanes) * op.weight.columns * std::min(step.tokens, kTokens);
    const int least = static_cast<int>(std::max<int64_t>(1, kLeast / group_work));
    const int wanted = divided_up(groups * token_tiles, pool.threads() * kChunksPerThread);
    const int together = std::clamp(wanted, std::min(least, groups), groups);
    const int pieces = divided_up(groups, together);
    pool.run(pieces * token_tiles, [&](int chunk) {
        const int group = chunk % pieces * together, token = chunk / pieces * kTokens;
        linear(op.weight, op.in, panel_width(step.tokens), op.out, group, std::min(groups, group + together), token,
               std::min(step.tokens, token + kTokens));
    });
}

void run(const Rotate& op, const Step& step, Pool& pool) {
    const auto [heads, kv_heads, head_dim] = op.heads;
    const int width = (heads + 2 * kv_heads) * head_dim, pairs = head_dim / 2;
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    const size_t block_stride = static_cast<size_t>(kv_heads) * step.block_size * head_dim;
    for_each_token(pool, step, width, [&](int token) {
        float* row = op.qkv + static_cast<size_t>(token) * width;
        const float* cos = op.cos + static_cast<size_t>(token) * pairs;
        const float* sin = op.sin + static_cast<size_t>(token) * pairs;
        for (int h = 0; h < heads + kv_heads; h++) {
            float* head = row + h * head_dim;
            const float* norm = h < heads ? op.query_norm : op.key_norm;
            if (norm) rms_norm(head, norm, op.eps, head_dim, head);
            rotate(head, cos, sin, head_dim);
        }
        for (int i = 0; i < heads * head_dim; i++) row[i] *= scale;

        const int position = position_of(step, token);
        const int32_t* blocks = step.blocks + step.span[step.span_of[token]].first_block;
        const int offset = position % step.block_size;
        const size_t block = blocks[position / step.block_size] * block_stride;
        const float* keys = row + heads * head_dim;
        const float* values = keys + kv_heads * head_dim;
        for (int h = 0; h < kv_heads; h++) {
            const size_t start = block + static_cast<size_t>(h) * step.block_size * head_dim;
            Half row_of_keys[kMaxHeadDim];
            for (int i = 0; i < head_dim; i += kLanes) {
                store(row_of_keys + i, load(keys + h * head_dim + i));
                store(op.cache.values + start + static_cast<size_t>(offset) * head_dim + i,
                      load(values + h * head_dim + i));
            }
            for (int i = 0; i < head_dim; i++)
                op.cache.keys[start + static_cast<size_t>(i) * step.block_size + offset] = row_of_keys[i];
        }
    });
}

// A chunk is some tokens of one sequence in all heads, or in one if there would be few chunks otherwise.
void run(const Attend& op, const Step& step, Pool& pool) {
    constexpr int kChunksPerThread = 4;
    const auto [heads, kv_heads, head_dim] = op.heads;
    const int width = (heads + 2 * kv_heads) * head_dim, per_kv_head = heads / kv_heads;
    const int heads_together = step.tasks >= kChunksPerThread * pool.threads() ? kv_heads : 1;
    const int pieces = kv_heads / heads_together;
    const size_t head_stride = static_cast<size_t>(step.block_size) * head_dim;
    const auto cached = [&](const Span& span, int kv_head) {
        return CachedHead{op.cache.keys + kv_head * head_stride,
                          op.cache.values + kv_head * head_stride,
                          step.blocks + span.first_block,
                          kv_heads * head_stride,
                          step.block_size,
                          head_dim};
    };
    const auto first_position = [&](int position) { return op.window > 0 ? std::max(0, position + 1 - op.window) : 0; };
    pool.run(step.tasks * pieces, [&](int chunk) {
        const int32_t* task = step.task + chunk / pieces * 3;
        const Span& span = step.span[task[0]];
        const int first_head = chunk % pieces * heads_together;
        // Chunks are handed out from the last to the first, to as many threads as there are.
        const int next_chunk = std::max(0, chunk - pool.threads());
        const Span& next_span = step.span[step.task[next_chunk / pieces * 3]];
        const int next_first = first_position(next_span.start);
        const Ahead next(cached(next_span, next_chunk % pieces * heads_together), heads_together, next_first,
                         std::min(next_first / kTilePositions * kTilePositions + kTilePositions, next_span.start + 1));
        Batch batches[kBatches];
        int count = 0, began_with = first_head;
        for (int kv_head = first_head; kv_head < first_head + heads_together; kv_head++) {
            for (int i = 0; i < task[2] * per_kv_head; i++) {
                const int in_span = task[1] + i / per_kv_head, position = span.start + in_span;
                const size_t token = span.first_token + in_span;
                const int h = kv_head * per_kv_head + i % per_kv_head;
                if (i % kQueries == 0) {
                    if (count == kBatches) {
                        attend(batches, count, kv_head - began_with + 1, next);
                        count = 0;
                        began_with = kv_head;
                    }
                    batches[count++] = {cached(span, kv_head), {}, 0};
                }
                Batch& batch = batches[count - 1];
                batch.queries[batch.count++] = {op.qkv + token * width + h * head_dim,
                                                op.into + (token * heads + h) * head_dim, first_position(position),
                                                position + 1, {}};
            }
        }
        attend(batches, count, first_head + heads_together - began_with, next);
    });
}

void run(const Gate& op, const Step& step, Pool& pool) {
    for_each_token(pool, step, op.size * 2, [&](int token) {
        float* into = op.into + static_cast<size_t>(token) * op.size;
        gated_silu(op.gate_up + static_cast<size_t>(token) * op.size * 2, op.size, into);
        if (op.quantised.kept()) quantise(into, op.size, op.quantised, token, step.tokens);
    });
}

// One projection of one stretch of tokens. Each has memory of its own between, [tokens][rank].
struct Product {
    LowRank low_rank;
    int tokens;
    const float* x;
    float* between;
    float* y;
};

Product product_of(const Lora& op, const Step& step, int index) {
    const AdaptedTokens& adapted = step.adapted[index / op.projections];
    const int projection = index % op.projections;
    const size_t first = adapted.first_token;
    const size_t before = first * op.projections + static_cast<size_t>(projection) * adapted.tokens;
    return {op.low_ranks[adapted.place * op.projections + projection], adapted.tokens, op.x + first * op.columns,
            op.between + before * op.max_rank, op.y + first * op.stride + op.first_row[projection]};
}

// First to the low rank, in chunks of a group of its rows; then from there, in as many pieces as keep the threads busy.
void run(const Lora& op, const Step& step, Pool& pool) {
    if (step.num_adapted == 0) return;
    const int products = step.num_adapted * op.projections;
    const int most_groups = divided_up(op.max_rank, kLanes);
    pool.run(products * most_groups, [&](int chunk) {
        const auto [low_rank, tokens, x, between, y] = product_of(op, step, chunk / most_groups);
        const int group = chunk % most_groups;
        if (!low_rank.a.data || group * kLanes >= low_rank.a.rows) return;
        linear(low_rank.a, {x, {}}, 1, {between, low_rank.a.rows, 0, nullptr}, group, group + 1, 0, tokens);
    });
    const int pieces = divided_up(pool.threads() * 2, products);
    pool.run(products * pieces, [&](int chunk) {
        const auto [low_rank, tokens, x, between, y] = product_of(op, step, chunk / pieces);
        if (!low_rank.a.data) return;
        const int groups = divided_up(low_rank.b.rows, kLanes), together = divided_up(groups, pieces);
        const int first = std::min(groups, chunk % pieces * together), last = std::min(groups, first + together);
        linear(low_rank.b, {between, {}}, 1, {y, op.stride, 1, nullptr}, first, last, 0, tokens);
    });
}

void run(const Operation& operation, const Step& step, Pool& pool) {
    switch (operation.kind) {
        case Kind::embed: return run(reinterpret_cast<const Embed&>(operation), step, pool);
        case Kind::angles: return run(reinterpret_cast<const Angles&>(operation), step, pool);
        case Kind::norm: return run(reinterpret_cast<const Norm&>(operation), step, pool);
        case Kind::quantise: return run(reinterpret_cast<const Quantise&>(operation), step, pool);
        case Kind::linear: return run(reinterpret_cast<const Linear&>(operation), step, pool);
        case Kind::rotate: return run(reinterpret_cast<const Rotate&>(operation), step, pool);
        case Kind::attend: return run(reinterpret_cast<const Attend&>(operation), step, pool);
        case Kind::gate: return run(reinterpret_cast<const Gate&>(operation), step, pool);
        case Kind::lora: return run(reinterpret_cast<const Lora&>(operation), step, pool);
    }
}

}  // namespace
}  // namespace trillm

extern "C" {

int trillm_lanes() { return trillm::kLanes; }

trillm::Pool* trillm_open_pool(int threads) { return new trillm::Pool(threads); }

void trillm_close_pool(trillm::Pool* pool) { delete pool; }

void trillm_run(trillm::Pool* pool, const trillm::Operation* const* operations, int count, const trillm::Step* step) {
    for (int i = 0; i < count; i++) trillm::run(*operations[i], *step, *pool);
}

#if defined(__linux__)

size_t trillm_group_bytes(int size) { return trillm::SharedGroup::bytes(size); }

trillm::SharedGroup* trillm_open_group(void* memory, int index, int size, const int* pidfds, double seconds,
                                       double spin_microseconds) {
    return new trillm::SharedGroup(static_cast<uint8_t*>(memory), index, size, pidfds, seconds, spin_microseconds);
}

void trillm_close_group(trillm::SharedGroup* group) { delete group; }

int trillm_group_lost(const trillm::SharedGroup* group) { return group->lost(); }

int trillm_group_sum(trillm::SharedGroup* group, int type, void* x, size_t numbers) {
    return static_cast<int>(group->sum(static_cast<trillm::Summed>(type), static_cast<uint8_t*>(x), numbers));
}

int trillm_group_gather(trillm::SharedGroup* group, const void* x, void* into, size_t outer, size_t inner) {
    return static_cast<int>(
        group->gather(static_cast<const uint8_t*>(x), static_cast<uint8_t*>(into), outer, inner));
}

int trillm_group_broadcast(trillm::SharedGroup* group, void* x, size_t bytes, int source) {
    return static_cast<int>(group->broadcast(static_cast<uint8_t*>(x), bytes, source));
}

int trillm_group_send(trillm::SharedGroup* group, const void* x, size_t bytes, int to) {
    return static_cast<int>(group->send(static_cast<const uint8_t*>(x), bytes, to));
}

int trillm_group_receive(trillm::SharedGroup* group, void* into, size_t bytes, int source) {
    return static_cast<int>(group->receive(static_cast<uint8_t*>(into), bytes, source));
}

#endif

}  // extern "C"
