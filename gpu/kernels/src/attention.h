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

// One query: where it is, which positions it sees ([first, last)), and where its result goes.
struct Query {
    const float* vector;  // [head_dim], scaled
    float* into;          // [head_dim]
    int first;
    int last;
};

// What a query knows after some tiles: values are weighted with exp(score - maximum).
struct Progress {
    float maximum;
    float total;
};

// scores[query][position - start] of the strips that cover [from, to), a multiple of kStrip wide.
template <int kCount>
inline void score(const CachedHead& head, const Query* queries, int start, int from, int to,
                  float (*scores)[kTilePositions]) {
    constexpr int kVectors = kStrip / kLanes;
    for (int position = from; position < to; position += kStrip) {
        const Half* keys = head.strip_of_keys(position);
        Floats sums[kCount][kVectors];
        for (auto& each : sums)
            for (Floats& vector : each) vector = broadcast(0.0f);
        for (int i = 0; i < head.head_dim; i++, keys += head.block_size)
            for (int v = 0; v < kVectors; v++) {
                const Floats key = load(keys + v * kLanes);
                for (int q = 0; q < kCount; q++) sums[q][v] = fma(key, broadcast(queries[q].vector[i]), sums[q][v]);
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

// Computes kCount queries of one sequence together.
template <int kCount>
inline void attend(const CachedHead& head, const Query* queries) {
    alignas(64) float scores[kCount][kTilePositions];
    alignas(64) float values[kCount][kMaxHeadDim];
    Progress known[kCount] = {};
    int first = queries[0].first, last = queries[0].last;
    for (int q = 1; q < kCount; q++) {
        first = std::min(first, queries[q].first);
        last = std::max(last, queries[q].last);
    }
    for (int start = first / kTilePositions * kTilePositions; start < last; start += kTilePositions) {
        const int from = std::max(start, first / kStrip * kStrip), to = std::min(start + kTilePositions, last);
        score<kCount>(head, queries, start, from, to, scores);
        Progress tile[kCount] = {};
        int begin[kCount], end[kCount], common_begin = start, common_end = to;
        for (int q = 0; q < kCount; q++) {
            begin[q] = std::max(start, queries[q].first);
            end[q] = std::max(begin[q], std::min(to, queries[q].last));
            common_begin = std::max(common_begin, begin[q]);
            common_end = std::min(common_end, end[q]);
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
            if (begin[q] < end[q]) merge(known[q], queries[q].into, tile[q], values[q], head.head_dim);
        }
    }
    for (int q = 0; q < kCount; q++) {
        const Floats factor = broadcast(1.0f / known[q].total);
        for (int i = 0; i < head.head_dim; i += kLanes) store(queries[q].into + i, load(queries[q].into + i) * factor);
    }
}

inline void attend(const CachedHead& head, const Query* queries, int count) {
    for (; count >= kQueries; count -= kQueries, queries += kQueries) attend<kQueries>(head, queries);
    switch (count) {
        case 3: return attend<3>(head, queries);
        case 2: return attend<2>(head, queries);
        case 1: return attend<1>(head, queries);
    }
}

}  // namespace trillm
