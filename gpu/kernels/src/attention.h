// Attention over the paged cache, whose blocks are read where they lie.
//
// A block of one KV head holds keys as [head_dim][block_size], so that a vector has the same dimension of neighbouring
// positions and no score needs a sum over lanes, and values as [block_size][head_dim]; both float16.
//
// Batch invariance: the keys are taken in tiles of 128 positions, counted from the sequence's start. Each tile gives a
// query a maximum, a sum and a weighted sum of values; the query's result merges them in order. None of that depends on
// which other queries are computed beside it, in decode or in prefill.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "exponential.h"
#include "half.h"
#include "lanes.h"

namespace trillm {

constexpr int kTilePositions = 128;
constexpr int kStrip = 16;       // positions whose keys are read together; block sizes are multiples of it
constexpr int kQueries = 4;      // computed together
constexpr int kBatches = 16;     // taken through the tiles together
constexpr int kMaxHeadDim = 256;

// One sequence's cache in one layer, of one KV head.
struct CachedHead {
    const Half* keys;
    const Half* values;
    const int32_t* blocks;  // the sequence's block table
    size_t block_stride;    // numbers from one block to the next
    int block_size;
    int head_dim;

    const Half* strip_of_keys(int position) const {
        return keys + blocks[position / block_size] * block_stride + position % block_size;
    }
    const Half* value_at(int position) const {
        return values + blocks[position / block_size] * block_stride +
               static_cast<size_t>(position % block_size) * head_dim;
    }
};

// What a query knows after some tiles: values are weighted with exp(score - maximum).
struct Progress {
    float maximum;
    float total;
};

// One query: where it is, which positions it sees ([first, last)), and where its result goes.
struct Query {
    const float* vector;  // [head_dim], scaled
    float* into;          // [head_dim]
    int first;
    int last;
    Progress known;
};

// Queries of one KV head that are computed together.
struct Batch {
    CachedHead head;
    Query queries[kQueries];
    int count;
};

// What will be read soon, asked for in the order in which it lies in memory while something else is computed.
//
// Sequences are spread over the pool block by block, and heads are computed one after the other, so that what a tile
// reads comes in pieces with gaps between them: waiting for each would take twice as long as computing.
class Ahead {
  public:
    // The positions [from, last) of `heads` KV heads, of which `first` is the first.
    Ahead(const CachedHead& first, int heads, int from, int last)
        : first_(first), heads_(heads), position_(from / kStrip * kStrip), last_(last) {}

    // The next strip of one head: pointers to head_dim * kStrip numbers each, to be asked for row by row.
    struct Piece {
        const Half* keys;
        const Half* values;
    };
    Piece take() {
        if (position_ >= last_) return {first_.keys, first_.values};
        const size_t head = static_cast<size_t>(head_) * first_.block_size * first_.head_dim;
        const size_t at = first_.value_at(position_) - first_.values + head;
        if (++head_ == heads_) {
            head_ = 0;
            position_ += kStrip;
        }
        return {first_.keys + at, first_.values + at};
    }

  private:
    CachedHead first_;
    int heads_;
    int position_;
    int last_;
    int head_ = 0;
};

// scores[query][position - start] of the strips that cover [from, to), a multiple of kStrip wide.
template <int kCount>
inline void score(const CachedHead& head, const Query* queries, int start, int from, int to, Ahead& ahead,
                  float (*scores)[kTilePositions]) {
    constexpr int kVectors = kStrip / kLanes;
    for (int position = from; position < to; position += kStrip) {
        const Half* keys = head.strip_of_keys(position);
        const Ahead::Piece next = ahead.take();
        Floats sums[kCount][kVectors];
        for (auto& each : sums)
            for (Floats& vector : each) vector = broadcast(0.0f);
        for (int i = 0; i < head.head_dim; i++, keys += head.block_size) {
            // Two rows of kStrip are one line of the processor's cache. Many requests at once would hold up the loads.
            __builtin_prefetch((i % 2 ? next.values : next.keys) + i / 2 * 2 * kStrip, 0, 2);
            for (int v = 0; v < kVectors; v++) {
                const Floats key = load(keys + v * kLanes);
                for (int q = 0; q < kCount; q++) sums[q][v] = fma(key, broadcast(queries[q].vector[i]), sums[q][v]);
            }
        }
        for (int q = 0; q < kCount; q++)
            for (int v = 0; v < kVectors; v++) store(scores[q] + (position - start) + v * kLanes, sums[q][v]);
    }
}

// Scores to weights, in place, for the positions [first, last) of the tile; the others become 0.
inline Progress weigh(float* scores, int first, int last) {
    const float lowest = -std::numeric_limits<float>::infinity();
    const int begin = first / kStrip * kStrip, end = (last + kStrip - 1) / kStrip * kStrip;
    std::fill(scores + begin, scores + first, lowest);
    std::fill(scores + last, scores + end, lowest);
    Floats highest = broadcast(lowest);
    for (int i = begin; i < end; i += kLanes) highest = max(highest, load(scores + i));
    const float maximum = largest(highest);
    Floats total = broadcast(0.0f);
    for (int i = begin; i < end; i += kLanes) store(scores + i, exponential(load(scores + i) - broadcast(maximum)));
    std::fill(scores + begin, scores + first, 0.0f);
    std::fill(scores + last, scores + end, 0.0f);
    for (int i = begin; i < end; i += kLanes) total = total + load(scores + i);
    return {maximum, sum(total)};
}

// sums[query][head_dim] += weights * values over the positions [from, to).
template <int kCount>
inline void add_values(const CachedHead& head, float (*weights)[kTilePositions], int start, int from, int to,
                       float (*sums)[kMaxHeadDim]) {
    for (int i = 0; i < head.head_dim; i += 2 * kLanes) {
        const bool both = i + kLanes < head.head_dim;
        Floats partial[kCount][2];
        for (int q = 0; q < kCount; q++) {
            partial[q][0] = load(sums[q] + i);
            partial[q][1] = both ? load(sums[q] + i + kLanes) : broadcast(0.0f);
        }
        for (int position = from; position < to;) {
            const int end = std::min(to, (position / kStrip + 1) * kStrip);
            const Half* values = head.value_at(position) + i;
            for (; position < end; position++, values += head.head_dim) {
                const Floats first = load(values), second = both ? load(values + kLanes) : first;
                for (int q = 0; q < kCount; q++) {
                    const Floats weight = broadcast(weights[q][position - start]);
                    partial[q][0] = fma(weight, first, partial[q][0]);
                    partial[q][1] = fma(weight, second, partial[q][1]);
                }
            }
        }
        for (int q = 0; q < kCount; q++) {
            store(sums[q] + i, partial[q][0]);
            if (both) store(sums[q] + i + kLanes, partial[q][1]);
        }
    }
}

// Merge what one tile gave (`tile`, `values`) into what is known so far.
inline void merge(Progress& known, float* known_values, Progress tile, const float* values, int head_dim) {
    if (known.total == 0.0f) {
        known = tile;
        std::copy(values, values + head_dim, known_values);
        return;
    }
    const float maximum = std::max(known.maximum, tile.maximum);
    float shifts[kLanes] = {known.maximum - maximum, tile.maximum - maximum};
    store(shifts, exponential(load(shifts)));
    known.maximum = maximum;
    known.total = known.total * shifts[0] + tile.total * shifts[1];
    const Floats kept = broadcast(shifts[0]), added = broadcast(shifts[1]);
    for (int i = 0; i < head_dim; i += kLanes)
        store(known_values + i, fma(load(known_values + i), kept, load(values + i) * added));
}

// Takes kCount queries of one sequence and head through the tile that begins at `start`.
template <int kCount>
inline void attend_tile(const CachedHead& head, Query* queries, int start, Ahead& ahead) {
    alignas(64) float scores[kCount][kTilePositions];
    alignas(64) float values[kCount][kMaxHeadDim];
    int from = start + kTilePositions, to = start;
    int begin[kCount], end[kCount], common_begin = start, common_end = start + kTilePositions;
    for (int q = 0; q < kCount; q++) {
        begin[q] = std::max(start, queries[q].first);
        end[q] = std::max(begin[q], std::min(start + kTilePositions, queries[q].last));
        if (begin[q] < end[q]) {  // else its window begins behind this tile
            from = std::min(from, begin[q] / kStrip * kStrip);
            to = std::max(to, end[q]);
        }
        common_begin = std::max(common_begin, begin[q]);
        common_end = std::min(common_end, end[q]);
    }
    score<kCount>(head, queries, start, from, to, ahead, scores);
    Progress tile[kCount] = {};
    for (int q = 0; q < kCount; q++) {
        if (begin[q] < end[q]) tile[q] = weigh(scores[q], begin[q] - start, end[q] - start);
        std::fill(values[q], values[q] + head.head_dim, 0.0f);
    }
    // Positions that all of them see are taken together, those before and after one by one: always in order.
    common_end = std::max(common_begin, common_end);
    for (int q = 0; q < kCount; q++)
        add_values<1>(head, scores + q, start, begin[q], std::min(end[q], common_begin), values + q);
    add_values<kCount>(head, scores, start, common_begin, common_end, values);
    for (int q = 0; q < kCount; q++) {
        add_values<1>(head, scores + q, start, std::max(begin[q], common_end), end[q], values + q);
        if (begin[q] < end[q]) merge(queries[q].known, queries[q].into, tile[q], values[q], head.head_dim);
    }
}

inline void attend_tile(Batch& batch, int start, Ahead& ahead) {
    switch (batch.count) {
        case 4: return attend_tile<4>(batch.head, batch.queries, start, ahead);
        case 3: return attend_tile<3>(batch.head, batch.queries, start, ahead);
        case 2: return attend_tile<2>(batch.head, batch.queries, start, ahead);
        case 1: return attend_tile<1>(batch.head, batch.queries, start, ahead);
    }
}

// Computes batches of one sequence, whose KV heads are `heads` neighbours of which the first batch has the first.
// Reads from `next` what is computed after them.
inline void attend(Batch* batches, int count, int heads, Ahead next) {
    int first = batches[0].queries[0].first, last = 0;
    for (int b = 0; b < count; b++)
        for (int q = 0; q < batches[b].count; q++) {
            first = std::min(first, batches[b].queries[q].first);
            last = std::max(last, batches[b].queries[q].last);
        }
    for (int start = first / kTilePositions * kTilePositions; start < last; start += kTilePositions) {
        const int end = start + kTilePositions;
        Ahead ahead = end < last ? Ahead(batches[0].head, heads, end, std::min(last, end + kTilePositions)) : next;
        for (int b = 0; b < count; b++) attend_tile(batches[b], start, ahead);
    }
    for (int b = 0; b < count; b++)
        for (int q = 0; q < batches[b].count; q++) {
            const Query& query = batches[b].queries[q];
            const Floats factor = broadcast(1.0f / query.known.total);
            for (int i = 0; i < batches[b].head.head_dim; i += kLanes)
                store(query.into + i, load(query.into + i) * factor);
        }
}

}  // namespace trillm
