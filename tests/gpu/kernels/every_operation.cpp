// Runs every operation of the kernels on inputs that are alike on every processor, and prints a hash of each result.
// Two builds compute the same to the last bit if they print the same; all NaN count as one. Used by test_neon.py.
//
// Angles are missing: they are the C library's sine and cosine, which need not agree between processors.

#include "program.cpp"

#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

using namespace trillm;

#if defined(__aarch64__) && !defined(TRILLM_PLAIN_LANES)
static_assert(std::is_same_v<decltype(Floats::low), float32x4_t>, "plain code would be compared with plain code");
#endif
#ifndef TRILLM_ANY_LANES  // for who does not compare what is printed
static_assert(kLanes == 8, "matrices are laid out by lanes, so that another number of them has other inputs");
#endif

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t bits() {  // splitmix64
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    float number() { return static_cast<float>(static_cast<int32_t>(bits() >> 40) - (1 << 23)) * 0x1p-23f; }  // [-1, 1)
    // Blocks of 32 of very different size.
    std::vector<float> numbers(size_t count) {
        std::vector<float> result(count);
        float size = 1.0f;
        for (size_t i = 0; i < count; i++) {
            if (i % 32 == 0) size = std::ldexp(1.0f, static_cast<int>(bits() % 11) - 5);
            result[i] = number() * size;
        }
        return result;
    }

  private:
    uint64_t state_;
};

uint32_t bits_of(float value) { return std::isnan(value) ? 0x7fc00000 : std::bit_cast<uint32_t>(value); }
uint32_t bits_of(Half value) { return (value.bits & 0x7fff) > 0x7c00 ? 0x7e00 : value.bits; }
uint32_t bits_of(int32_t value) { return static_cast<uint32_t>(value); }
uint32_t bits_of(int8_t value) { return static_cast<uint8_t>(value); }

template <class Number>
void print(const std::string& name, const std::vector<Number>& numbers) {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const Number number : numbers)
        for (int byte = 0; byte < 4; byte++) hash = (hash ^ (bits_of(number) >> 8 * byte & 0xff)) * 0x100000001b3;
    std::printf("%s: %zu numbers, %016llx\n", name.c_str(), numbers.size(), static_cast<unsigned long long>(hash));
}

// Activations, whole and quantised.
struct Rows {
    int tokens, columns;
    std::vector<float> numbers;
    size_t blocks = static_cast<size_t>(divided_up(tokens, kPanelTokens)) * kPanelTokens * columns / kBlock;
    std::vector<CoarseBlock> coarse = std::vector<CoarseBlock>(blocks);
    std::vector<FineBlock> fine = std::vector<FineBlock>(blocks);

    Quantised quantised(bool is_fine) {
        return {is_fine ? nullptr : coarse.data(), is_fine ? fine.data() : nullptr};
    }
    void print_fine(const std::string& name) {
        std::vector<int32_t> words(blocks * sizeof(FineBlock) / sizeof(int32_t));
        std::memcpy(words.data(), fine.data(), words.size() * sizeof(int32_t));
        print(name, words);
    }
};

// Rows of which one holds NaN, one infinity, one nothing but zeros, one hardly more than that, and one what is half-way
// between two whole numbers when it is quantised.
Rows random_rows(int tokens, int columns, Random& random) {
    Rows rows{tokens, columns, random.numbers(static_cast<size_t>(tokens) * columns)};
    rows.numbers[columns * 2 + 7] = kNan;
    rows.numbers[columns * 3 + 9] = -kInfinity;
    for (int i = 0; i < columns; i++) {
        rows.numbers[columns * 4 + i] = 0.0f;
        rows.numbers[columns * 5 + i] *= 1e-38f;
        rows.numbers[columns * 6 + i] = i % kBlock == 0 ? 127.0f : static_cast<float>(i % kBlock) - 15.5f;
    }
    return rows;
}

void append(std::vector<uint8_t>& to, const void* from, size_t size) {
    to.insert(to.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
}
void append_as(float, std::vector<uint8_t>& to, float value) { append(to, &value, sizeof value); }
void append_as(Half, std::vector<uint8_t>& to, float value) {
    const Half half = to_half(value);
    append(to, &half, sizeof half);
}
void append_as(Bfloat, std::vector<uint8_t>& to, float value) {
    const Bfloat upper{static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
    append(to, &upper, sizeof upper);
}

// A laid-out matrix; `fill` is for each byte of quantised weights, random if it is negative.
std::vector<uint8_t> laid_out(Format format, int rows, int columns, int fill, Random& random) {
    std::vector<uint8_t> data;
    const size_t groups = divided_up(rows, kLanes);
    with_format(format, [&]<class Stored>(Stored) {
        if constexpr (Quantisation<Stored>) {
            for (size_t block = 0; block < groups * columns / kBlock; block++) {
                for (int i = 0; i < (Stored::kScales + Stored::kMinimum) * kLanes; i++)
                    append_as(typename Stored::Scale{}, data, random.number() / 64);
                for (int i = 0; i < Stored::kWeightBytes * kLanes; i++)
                    data.push_back(static_cast<uint8_t>(fill < 0 ? random.bits() : fill));
            }
        } else {
            for (size_t i = 0; i < groups * columns * kLanes; i++) append_as(Stored{}, data, random.number());
        }
    });
    return data;
}

template <class... Record>
void run_all(const Step& step, const Record&... records) {
    const Operation* operations[] = {&records.operation...};
    Pool pool(2);
    trillm_run(&pool, operations, sizeof...(records), &step);
}

void print_linear(Format format, int fill, bool is_fine, Random& random) {
    constexpr int kTokens = 11, kRows = 37, kColumns = 512;
    const std::string name = "format " + std::to_string(static_cast<int>(format)) + " of " + std::to_string(fill) +
                             (is_fine ? " fine" : " coarse");
    Rows in = random_rows(kTokens, kColumns, random);
    if (fill >= 0)
        for (int i = 0; i < kColumns; i++) {
            in.numbers[i] = -1.0f;
            in.numbers[kColumns + i] = 1.0f;
        }
    const std::vector<uint8_t> data = laid_out(format, kRows, kColumns, fill, random);
    const Matrix weight{data.data(), format, kRows, kColumns};
    std::vector<float> out(kTokens * kRows), more = random.numbers(out.size()), bias = random.numbers(kRows);
    const LinearInput input{in.numbers.data(), in.quantised(is_fine)};
    const Step step{.tokens = kTokens};
    run_all(step, Quantise{{Kind::quantise}, kColumns, in.numbers.data(), in.quantised(is_fine)},
            Linear{{Kind::linear}, weight, input, {out.data(), kRows, 0, nullptr}},
            Linear{{Kind::linear}, weight, input, {more.data(), kRows, 1, bias.data()}});
    print(name + " product", out);
    print(name + " product, bias and what was there", more);

    const int32_t ids[kTokens] = {0, 36, 7, 8, 15, 16, 31, 32, 1, 2, 3};
    std::vector<float> embedded(kTokens * kColumns);
    run_all(Step{.tokens = kTokens, .token_ids = ids}, Embed{{Kind::embed}, weight, embedded.data()});
    print(name + " rows", embedded);
}

void print_rows(Random& random) {
    constexpr int kTokens = 9, kSize = 512;
    Rows in = random_rows(kTokens, kSize, random);
    const std::vector<float> weight = random.numbers(kSize);
    const Step step{.tokens = kTokens};
    run_all(step, Quantise{{Kind::quantise}, kSize, in.numbers.data(), in.quantised(true)});
    in.print_fine("quantised");

    Rows normed{kTokens, kSize, std::vector<float>(kTokens * kSize)};
    run_all(step, Norm{{Kind::norm}, kSize, in.numbers.data(), weight.data(), 1e-5f, normed.numbers.data(),
                       normed.quantised(true)});
    print("norm", normed.numbers);
    normed.print_fine("quantised norm");

    Rows gated{kTokens, kSize / 2, std::vector<float>(kTokens * kSize / 2)};
    run_all(step, Gate{{Kind::gate}, kSize / 2, in.numbers.data(), gated.numbers.data(), gated.quantised(true)});
    print("gate", gated.numbers);
    gated.print_fine("quantised gate");
}

// Two sequences, in pieces, over a cache that holds NaN where nothing was written.
void print_attention(int head_dim, int block_size, int window, Random& random) {
    constexpr int kTokens = 190, kHeads = 6, kKvHeads = 2, kBlocks = 16;
    const std::string name = "attention of " + std::to_string(head_dim) + " dimensions, blocks of " +
                             std::to_string(block_size) + ", window " + std::to_string(window);
    const Heads heads{kHeads, kKvHeads, head_dim};
    std::vector<float> qkv = random.numbers(static_cast<size_t>(kTokens) * (kHeads + 2 * kKvHeads) * head_dim);
    std::vector<float> cos(kTokens * head_dim / 2), sin = cos;
    for (float& each : cos) each = random.number();
    for (float& each : sin) each = random.number();
    const std::vector<float> query_norm = random.numbers(head_dim), key_norm = random.numbers(head_dim);
    const size_t cache_size = static_cast<size_t>(kBlocks) * kKvHeads * block_size * head_dim;
    std::vector<Half> keys(cache_size, Half{0x7e00}), values = keys;
    const Cache cache{keys.data(), values.data()};
    std::vector<float> out(static_cast<size_t>(kTokens) * kHeads * head_dim);

    const Span spans[] = {{0, 150, 0, 0}, {150, 40, 0, 10}};
    std::vector<int32_t> span_of(kTokens, 0);
    std::fill(span_of.begin() + 150, span_of.end(), 1);
    const int32_t blocks[] = {3, 10, 1, 8, 15, 6, 13, 4, 11, 2, 9, 0, 7};
    const int32_t tasks[] = {0, 0, 64, 0, 64, 64, 0, 128, 22, 1, 0, 39, 1, 39, 1};
    const Step step{.tokens = kTokens, .spans = 2, .tasks = 5, .block_size = block_size, .token_ids = nullptr,
                    .span = spans, .span_of = span_of.data(), .blocks = blocks, .task = tasks};
    run_all(step,
            Rotate{{Kind::rotate}, heads, qkv.data(), cos.data(), sin.data(), query_norm.data(), key_norm.data(), 1e-6f,
                   cache},
            Attend{{Kind::attend}, heads, qkv.data(), out.data(), window, cache});
    print(name + ": rotated", qkv);
    print(name + ": keys", keys);
    print(name + ": values", values);
    print(name + ": result", out);
}

// Three projections of other sizes, and two adapters: the second one, whose rank is no multiple of the lanes, leaves
// the middle one alone. Tokens between and behind theirs have none.
void print_lora(Random& random) {
    constexpr int kTokens = 90, kColumns = 96, kProjections = 3, kMaxRank = 20, kStride = 150;
    constexpr int kRows[kProjections] = {64, 37, 32}, kRanks[] = {16, kMaxRank - 7};
    const std::vector<float> x = random.numbers(kTokens * kColumns);
    std::vector<float> y = random.numbers(kTokens * kStride), between(kTokens * kProjections * kMaxRank);
    std::vector<std::vector<uint8_t>> data;
    std::vector<LowRank> low_ranks;
    for (const int rank : kRanks)
        for (const int rows : kRows) {
            if (rank != kRanks[0] && rows == kRows[1]) {
                low_ranks.push_back({});
                continue;
            }
            data.push_back(laid_out(Format::float32, rank, kColumns, -1, random));
            data.push_back(laid_out(Format::float32, rows, rank, -1, random));
            low_ranks.push_back({{data[data.size() - 2].data(), Format::float32, rank, kColumns},
                                 {data.back().data(), Format::float32, rows, rank}});
        }
    const AdaptedTokens adapted[] = {{1, 1, 1}, {1, 5, 7}, {0, 20, 64}, {0, 84, 3}};
    run_all(Step{.tokens = kTokens, .adapted = adapted, .num_adapted = 4},
            Lora{{Kind::lora}, kProjections, kColumns, x.data(), y.data(), kStride, {0, 64, 101}, kMaxRank,
                 between.data(), low_ranks.data()});
    print("adapters", y);
}

template <class Number>
void append_all(std::vector<Number>& to, Floats a) {
    to.resize(to.size() + kLanes);
    store(to.data() + to.size() - kLanes, a);
}

void print_arithmetic(Random& random) {
    std::vector<float> special = {0.0f,   -0.0f,   0.5f,      -0.5f,     1.5f,      2.5f,     -2.5f,  1.0f,
                                  -1.0f,  1e-40f,  -1e-40f,   1e-38f,    3e38f,     -3e38f,   88.0f,  88.5f,
                                  -87.0f, -87.5f,  kInfinity, -kInfinity, kNan,     -kNan,    8388609, -8388607.5f};
    for (int i = 0; i < 200; i++) special.push_back(random.number() * 100);
    std::vector<float> two, one, folds, powers;
    for (size_t j = 0; j < special.size(); j += kLanes) {
        const Floats b = load(special.data() + j);
        for (const Floats result : {nearest(b), exponential(b)}) append_all(one, result);
        folds.insert(folds.end(), {sum(b), largest(b)});
        for (const float each : special) {
            const Floats a = broadcast(each);
            for (const Floats result :
                 {a + b, a - b, a * b, a / b, max(a, b), min(a, b), max(b, a), min(b, a), fma(a, b, a), fma(b, b, a)})
                append_all(two, result);
        }
    }
    for (int exponent = -126; exponent <= 127; exponent++)
        append_all(powers, power_of_two(broadcast(static_cast<float>(exponent))));
    print("powers of two", powers);
    print("arithmetic of two", two);
    print("nearest and exponential", one);
    print("sum and largest", folds);
}

void print_conversions() {
    std::vector<float> from_half, from_bfloat;
    std::vector<Half> to_halves;
    for (uint32_t bits = 0; bits < 65536; bits += kLanes) {
        Half halves[kLanes];
        Bfloat bfloats[kLanes];
        for (uint32_t i = 0; i < kLanes; i++) {
            halves[i] = {static_cast<uint16_t>(bits + i)};
            bfloats[i] = {static_cast<uint16_t>(bits + i)};
        }
        append_all(from_half, load(halves));
        append_all(from_bfloat, load(bfloats));
        // Between this number and the next one, where rounding decides, and beside it.
        for (const uint32_t between : {0x0u, 0x0fffu, 0x1000u, 0x1001u}) {
            float numbers[kLanes];
            for (int i = 0; i < kLanes; i++)
                numbers[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(to_float(halves[i])) + between);
            append_all(to_halves, load(numbers));
        }
    }
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += kLanes * 4099) {
        float numbers[kLanes];
        for (int i = 0; i < kLanes; i++) numbers[i] = std::bit_cast<float>(static_cast<uint32_t>(bits + i * 4099));
        append_all(to_halves, load(numbers));
    }
    print("from float16", from_half);
    print("from bfloat16", from_bfloat);
    print("to float16", to_halves);
}

}  // namespace

int main() {
    Random random(1);
    print_arithmetic(random);
    print_conversions();
    print_rows(random);
    for (const Format format : {Format::nibbles, Format::nibbles_float, Format::bytes, Format::bytes_minimum,
                                Format::bytes_halves})
        for (const int fill : {-1, 0x00, 0x7f, 0x80, 0xff})
            for (const bool is_fine : {false, true}) print_linear(format, fill, is_fine, random);
    for (const Format format : {Format::float16, Format::bfloat16, Format::float32})
        print_linear(format, -1, false, random);
    print_lora(random);
    for (const int head_dim : {16, 64 + kLanes})
        for (const int block_size : {16, 32})
            for (const int window : {0, 10, 50}) print_attention(head_dim, block_size, window, random);
}
