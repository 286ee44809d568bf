// Shapes: N queries of a sequence of S positions, H heads, K heads of keys and values, D head size.
#include "kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "kernels/attention_in_rows.h"
#include "kernels/loops.h"

namespace tdock::kernels {
namespace {

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::normal(0.0, 1.0, shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

// The last queries of a sequence, and all of its keys and values.
struct Case {
  AttentionShape shape;
  int64_t positions = 0;
  int64_t window = 0;
  at::Tensor queries_NHD, keys_SKD, values_SKD;
  at::Tensor visible_NS = {};  // or undefined

  int64_t count() const { return queries_NHD.size(0); }
  int64_t begin() const { return positions - count(); }
  bool Sees(int64_t query, int64_t position) const {
    if (visible_NS.defined()) return visible_NS[query][position].item<bool>();
    const int64_t own = begin() + query;
    return position <= own && (window == 0 || position > own - window);
  }
  Case To(at::ScalarType type) const {
    Case typed = *this;
    for (at::Tensor* x : {&typed.queries_NHD, &typed.keys_SKD, &typed.values_SKD}) *x = x->to(type);
    return typed;
  }
  // Queries begin … begin + count - 1 of the case, with what precedes them or all that they may see.
  Case Part(int64_t first, int64_t length) const {
    Case part = *this;
    part.queries_NHD = queries_NHD.narrow(0, first, length);
    if (visible_NS.defined()) {
      // Queries are the last positions; a mask says what they see, of all positions.
      part.visible_NS = visible_NS.narrow(0, first, length).contiguous();
      return part;
    }
    part.positions = begin() + first + length;
    part.keys_SKD = keys_SKD.narrow(0, 0, part.positions);
    part.values_SKD = values_SKD.narrow(0, 0, part.positions);
    return part;
  }
};

Case RandomCase(uint64_t seed) {
  Rng rng(seed);
  const int64_t sizes[] = {8, 20, 24, 33, 64, 80, 128}, groups[] = {1, 2, 3, 4, 5, 7, 8, 9};
  Case c;
  const int64_t kv_heads = 1 + static_cast<int64_t>(rng.Below(3));
  c.shape = {kv_heads * groups[rng.Below(8)], kv_heads, sizes[rng.Below(7)]};
  c.positions = 1 + static_cast<int64_t>(rng.Below(seed % 4 == 0 ? 300 : 70));
  const auto most = static_cast<uint64_t>(std::min<int64_t>(c.positions, 60));
  const int64_t count = 1 + static_cast<int64_t>(rng.Below(most));
  if (rng.Below(3) == 0) c.window = 1 + static_cast<int64_t>(rng.Below(40));
  c.queries_NHD = 2 * Random({count, c.shape.heads, c.shape.head_dim}, seed);
  c.keys_SKD = Random({c.positions, kv_heads, c.shape.head_dim}, seed + 1);
  c.values_SKD = Random({c.positions, kv_heads, c.shape.head_dim}, seed + 2);
  if (seed % 3 == 0) {
    c.visible_NS = Random({count, c.positions}, seed + 3) > 0.3;
    c.visible_NS.diagonal(c.positions - count).fill_(true);
  }
  return c;
}

struct Result {
  at::Tensor output_NHD, log_sums_NH;
};

// One number after the other, in float64.
Result Plainly(const Case& c) {
  const int64_t group = c.shape.heads / c.shape.kv_heads;
  const at::Tensor queries = c.queries_NHD.to(at::kDouble), keys = c.keys_SKD.to(at::kDouble),
                   values = c.values_SKD.to(at::kDouble);
  Result result = {at::zeros_like(queries), at::zeros({c.count(), c.shape.heads}, at::kDouble)};
  for (int64_t n = 0; n < c.count(); ++n) {
    std::vector<int64_t> seen;
    for (int64_t s = 0; s < c.positions; ++s) {
      if (c.Sees(n, s)) seen.push_back(s);
    }
    const at::Tensor index = at::tensor(seen, at::kLong);
    for (int64_t h = 0; h < c.shape.heads; ++h) {
      const auto of_head = [&](const at::Tensor& x) { return x.select(1, h / group).index_select(0, index); };
      const at::Tensor scores = of_head(keys).mv(queries[n][h]) / std::sqrt(static_cast<double>(c.shape.head_dim));
      result.output_NHD[n][h] = scores.softmax(0).matmul(of_head(values));
      result.log_sums_NH[n][h] = scores.logsumexp(0);
    }
  }
  return result;
}

// Random pages, in which what no position has is not a number.
template <class T>
class TestPages {
 public:
  TestPages(const Case& c, uint64_t seed)
      : of_head_(kPageTokens * c.shape.head_dim),
        table_(static_cast<size_t>((c.positions + kPageTokens - 1) / kPageTokens)) {
    std::iota(table_.begin(), table_.end(), 1);
    Rng rng(seed);
    for (size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[rng.Below(i)]);
    memory_.assign((table_.size() + 1) * static_cast<size_t>(2 * c.shape.kv_heads * of_head_),
                   T(std::numeric_limits<float>::quiet_NaN()));
    pages_ = {memory_.data(), memory_.data() + c.shape.kv_heads * of_head_, 2 * c.shape.kv_heads * of_head_, of_head_};
  }
  TestPages(const TestPages&) = delete;

  const Pages<T>& pages() const { return pages_; }
  const int32_t* table() const { return table_.data(); }

  // As attention.h says.
  void Fill(const Case& c) {
    for (int64_t s = 0; s < c.positions; ++s) {
      for (int64_t k = 0; k < c.shape.kv_heads; ++k) {
        const int64_t at = table_[static_cast<size_t>(s / kPageTokens)] * pages_.page_stride + k * pages_.head_stride;
        for (int64_t d = 0; d < c.shape.head_dim; ++d) {
          const int64_t from = (s * c.shape.kv_heads + k) * c.shape.head_dim + d;
          pages_.keys[at + d * kPageTokens + s % kPageTokens] = c.keys_SKD.const_data_ptr<T>()[from];
          pages_.values[at + s % kPageTokens * c.shape.head_dim + d] = c.values_SKD.const_data_ptr<T>()[from];
        }
      }
    }
  }

 private:
  const int64_t of_head_;
  std::vector<int32_t> table_;
  std::vector<T> memory_;
  Pages<T> pages_;
};

// With the loops of one instruction set, `tokens` queries at a time.
template <class T>
Result WithLoops(const Loops& loops, const Case& c, int64_t tokens) {
  TestPages<T> pages(c, 3);
  pages.Fill(c);
  const int64_t group = c.shape.heads / c.shape.kv_heads, size = c.shape.head_dim;
  Result result = {at::empty_like(c.queries_NHD), at::empty({c.count(), c.shape.heads}, at::kFloat)};
  for (int64_t k = 0; k < c.shape.kv_heads; ++k) {
    for (int64_t first = 0; first < c.count(); first += tokens) {
      AttentionRows<T> rows = {
          .keys = pages.pages().keys + k * pages.pages().head_stride,
          .values = pages.pages().values + k * pages.pages().head_stride,
          .page_stride = pages.pages().page_stride,
          .pages = pages.table(),
          .queries = c.queries_NHD.const_data_ptr<T>() + k * group * size,
          .token_stride = c.shape.heads * size,
          .head_stride = size,
          .output = result.output_NHD.mutable_data_ptr<T>() + k * group * size,
          .log_sums = result.log_sums_NH.mutable_data_ptr<float>() + k * group,
          .heads = c.shape.heads,
          .head_dim = size,
          .begin_row = first * group,
          .end_row = std::min(first + tokens, c.count()) * group,
          .sight = {group, c.begin(), c.window, c.visible_NS.defined() ? c.visible_NS.const_data_ptr<bool>() : nullptr,
                    c.positions, c.positions},
          .scratch = nullptr,
      };
      std::vector<float> scratch(static_cast<size_t>(AttentionScratch(rows)));
      rows.scratch = scratch.data();
      loops.of<T>().attend(rows);
    }
  }
  return result;
}

// In pages, to which the last `fresh` positions are added.
template <class T>
Result InPages(const Case& c, int64_t fresh, uint64_t seed) {
  TestPages<T> pages(c, seed);
  if (fresh < c.positions) pages.Fill(c);
  Result result = {at::empty_like(c.queries_NHD), at::empty({c.count(), c.shape.heads}, at::kFloat)};
  const auto rows = [](const at::Tensor& x) { return TokenRows<T>{x.const_data_ptr<T>(), x.stride(0), x.stride(1)}; };
  const PagedAttention attention(c.shape, c.window,
                                 {{.pages = pages.table(),
                                   .begin = c.begin(),
                                   .count = c.count(),
                                   .first_query = 0,
                                   .fresh_begin = c.positions - fresh,
                                   .first_fresh = c.positions - fresh,
                                   .visible = c.visible_NS.defined() ? c.visible_NS.const_data_ptr<bool>() : nullptr,
                                   .visible_stride = c.positions}});
  attention.Run(pages.pages(), rows(c.queries_NHD), rows(c.keys_SKD), rows(c.values_SKD),
                result.output_NHD.mutable_data_ptr<T>(), result.log_sums_NH.mutable_data_ptr<float>());
  return result;
}

at::Tensor InRows(const Case& c) {
  const SequencePart part = {.count = c.count(), .positions = c.positions, .visible = c.visible_NS};
  return AttendInRows(c.queries_NHD, c.keys_SKD, c.values_SKD, {&part, 1}, c.window).output;
}

bool HasSameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

std::string NameOf(const Case& c, uint64_t seed) {
  return "case " + std::to_string(seed) + ": " + std::to_string(c.shape.heads) + " heads, " +
         std::to_string(c.shape.kv_heads) + " of keys, of " + std::to_string(c.shape.head_dim) + ", " +
         std::to_string(c.count()) + " of " + std::to_string(c.positions) + " positions, window " +
         std::to_string(c.window) + (c.visible_NS.defined() ? ", with a mask" : "");
}

template <class Body>
void ForTypes(Body&& body) {
  body(float());
  body(c10::BFloat16());
}

constexpr uint64_t kCases = 36;

TEST(Attention, OfEveryInstructionSetIsThatOfPlainLoops) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    ForTypes([&](auto type) {
      using T = decltype(type);
      const Case c = RandomCase(seed).To(c10::CppTypeToScalarType<T>::value);
      SCOPED_TRACE(NameOf(c, seed));
      const Result expected = Plainly(c);
      for (const Loops* loops : AllLoops()) {
        SCOPED_TRACE(loops->instructions);
        const Result together = WithLoops<T>(*loops, c, c.count());
        EXPECT_LT(Distance(together.output_NHD, expected.output_NHD), sizeof(T) == 4 ? 1e-5 : 1.6e-2);
        EXPECT_LT(Distance(together.log_sums_NH, expected.log_sums_NH), 1e-5);
        for (const int64_t tokens : {1, 7}) {
          const Result apart = WithLoops<T>(*loops, c, tokens);
          EXPECT_TRUE(HasSameBits(apart.output_NHD, together.output_NHD)) << tokens << " tokens at a time";
          EXPECT_TRUE(HasSameBits(apart.log_sums_NH, together.log_sums_NH)) << tokens << " tokens at a time";
        }
      }
    });
  }
}

TEST(Attention, IsTheSameInPagesAndRowsInPiecesAndOnAnyThreads) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    ForTypes([&](auto type) {
      using T = decltype(type);
      const Case c = RandomCase(seed).To(c10::CppTypeToScalarType<T>::value);
      SCOPED_TRACE(NameOf(c, seed));
      const at::Tensor expected = InRows(c);
      EXPECT_LT(Distance(expected, Plainly(c).output_NHD), sizeof(T) == 4 ? 1e-5 : 1.6e-2);
      EXPECT_TRUE(HasSameBits(InPages<T>(c, c.count(), seed).output_NHD, expected));
      at::set_num_threads(2);
      EXPECT_TRUE(HasSameBits(InPages<T>(c, c.positions, seed + 1).output_NHD, expected));
      at::set_num_threads(1);
      for (int64_t first = 0; first < c.count();) {
        const int64_t length = std::min<int64_t>(1 + static_cast<int64_t>(seed) % 11, c.count() - first);
        EXPECT_TRUE(HasSameBits(InRows(c.Part(first, length)), expected.narrow(0, first, length)));
        first += length;
      }
    });
  }
}

TEST(Attention, OfManyPartsIsThatOfEach) {
  std::vector<SequencePart> parts;
  std::vector<at::Tensor> queries, keys, values, expected;
  int64_t tokens = 0;
  for (const int64_t length : {1, 130, 17, 3, 64}) {
    Case c = {
        .shape = {6, 2, 24}, .positions = length, .window = 50, .queries_NHD = {}, .keys_SKD = {}, .values_SKD = {}};
    c.queries_NHD = Random({length, 6, 24}, static_cast<uint64_t>(length));
    c.keys_SKD = Random({length, 2, 24}, static_cast<uint64_t>(length) + 1);
    c.values_SKD = Random({length, 2, 24}, static_cast<uint64_t>(length) + 2);
    expected.push_back(InRows(c));
    queries.push_back(c.queries_NHD);
    keys.push_back(c.keys_SKD);
    values.push_back(c.values_SKD);
    parts.push_back({.first_query = tokens, .first_key = tokens, .count = length, .positions = length});
    tokens += length;
  }
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const at::Tensor together = AttendInRows(at::cat(queries), at::cat(keys), at::cat(values), parts, 50).output;
    at::set_num_threads(1);
    EXPECT_TRUE(HasSameBits(together, at::cat(expected)));
  }
}

TEST(Attention, DependsOnWhatIsVisibleAndNotWhere) {
  for (const int64_t count : {1, 40}) {
    const at::Tensor queries = Random({count, 6, 48}, 1), keys = Random({100, 2, 48}, 2),
                     values = Random({100, 2, 48}, 3);
    const at::Tensor padding = Random({11, 2, 48}, 4);
    const at::Tensor triangle = at::ones({count, 100}, at::kBool).tril(100 - count);
    const at::Tensor hidden = at::zeros({count, 11}, at::kBool);
    const auto attended = [&](const at::Tensor& visible, const at::Tensor& of_keys, const at::Tensor& of_values) {
      return InRows({.shape = {6, 2, 48},
                     .positions = of_keys.size(0),
                     .queries_NHD = queries,
                     .keys_SKD = of_keys,
                     .values_SKD = of_values,
                     .visible_NS = visible});
    };
    const at::Tensor alone = attended({}, keys, values);
    EXPECT_TRUE(HasSameBits(alone, attended(triangle, keys, values)));
    EXPECT_TRUE(HasSameBits(
        alone, attended(at::cat({hidden, triangle}, 1), at::cat({padding, keys}), at::cat({padding, values}))));
    const auto with_gap = [&](const at::Tensor& x, const at::Tensor& gap, int64_t dim) {
      return at::cat({x.narrow(dim, 0, 50), gap, x.narrow(dim, 50, 50)}, dim);
    };
    EXPECT_TRUE(HasSameBits(
        alone, attended(with_gap(triangle, hidden, 1), with_gap(keys, padding, 0), with_gap(values, padding, 0))));
  }
}

// The gradients of queries, keys and values by libtorch's operations, in float64.
std::vector<at::Tensor> PlainGradients(const Case& c, const at::Tensor& outgoing) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& x : {c.queries_NHD, c.keys_SKD, c.values_SKD}) {
    inputs.push_back(x.to(at::kDouble).requires_grad_());
  }
  at::Tensor visible = at::zeros({c.count(), c.positions}, at::kBool);
  for (int64_t n = 0; n < c.count(); ++n) {
    for (int64_t s = 0; s < c.positions; ++s) visible[n][s] = c.Sees(n, s);
  }
  const int64_t group = c.shape.heads / c.shape.kv_heads;
  const auto of_heads = [&](const at::Tensor& x) { return x.repeat_interleave(group, 1).transpose(0, 1); };
  const at::Tensor scores = inputs[0].transpose(0, 1).matmul(of_heads(inputs[1]).transpose(1, 2)) /
                            std::sqrt(static_cast<double>(c.shape.head_dim));
  const at::Tensor weights =
      scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  const at::Tensor output = weights.matmul(of_heads(inputs[2])).transpose(0, 1);
  return torch::autograd::grad({output}, inputs, {outgoing.to(at::kDouble)});
}

TEST(Attention, HasTheGradientsOfLibtorchsOperations) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    ForTypes([&](auto type) {
      using T = decltype(type);
      const Case c = RandomCase(seed).To(c10::CppTypeToScalarType<T>::value);
      SCOPED_TRACE(NameOf(c, seed));
      const SequencePart part = {.count = c.count(), .positions = c.positions, .visible = c.visible_NS};
      const Attended attended = AttendInRows(c.queries_NHD, c.keys_SKD, c.values_SKD, {&part, 1}, c.window);
      const at::Tensor outgoing =
          Random({c.count(), c.shape.heads, c.shape.head_dim}, seed + 9).to(c.queries_NHD.scalar_type());
      const std::vector<at::Tensor> expected = PlainGradients(c, outgoing);
      for (const int threads : {1, 2}) {
        at::set_num_threads(threads);
        const auto found =
            AttentionGradients(c.queries_NHD, c.keys_SKD, c.values_SKD, attended, outgoing, {&part, 1}, c.window);
        at::set_num_threads(1);
        for (size_t i = 0; i < 3; ++i) {
          // In bfloat16 the output, of which gradients are differences, was rounded.
          const double size = expected[i].abs().max().item<double>();
          const double tolerance = sizeof(T) == 4 ? 1e-5 * (size + 1e-3) : 2e-2 * (size + 0.3);
          EXPECT_LT(Distance(found[i], expected[i]), tolerance) << "of input " << i;
        }
      }
    });
  }
}

TEST(Attention, OfEveryInstructionSetHasGradients) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(NameOf(c, seed));
    const int64_t group = c.shape.heads / c.shape.kv_heads, size = c.shape.head_dim;
    const at::Tensor outgoing = Random({c.count(), c.shape.heads, size}, seed + 9);
    const std::vector<at::Tensor> expected = PlainGradients(c, outgoing);
    for (const Loops* loops : AllLoops()) {
      const Result attended = WithLoops<float>(*loops, c, c.count());
      std::vector<at::Tensor> found;
      for (const at::Tensor& x : {c.queries_NHD, c.keys_SKD, c.values_SKD}) found.push_back(at::empty_like(x));
      for (int64_t k = 0; k < c.shape.kv_heads; ++k) {
        const auto rows = [&](const at::Tensor& x, int64_t head) {
          return TokenRows<float>{x.const_data_ptr<float>() + head * size, x.stride(0), x.stride(1)};
        };
        const bool* const visible = c.visible_NS.defined() ? c.visible_NS.const_data_ptr<bool>() : nullptr;
        AttentionGradientRows<float> part = {
            .queries = rows(c.queries_NHD, k * group),
            .output = rows(attended.output_NHD, k * group),
            .outgoing = rows(outgoing, k * group),
            .keys = rows(c.keys_SKD, k),
            .values = rows(c.values_SKD, k),
            .log_sums = attended.log_sums_NH.const_data_ptr<float>() + k * group,
            .heads = c.shape.heads,
            .kv_heads = c.shape.kv_heads,
            .head_dim = size,
            .sight = {group, c.begin(), c.window, visible, c.positions, c.positions},
            .query_gradient = found[0].mutable_data_ptr<float>() + k * group * size,
            .key_gradient = found[1].mutable_data_ptr<float>() + k * size,
            .value_gradient = found[2].mutable_data_ptr<float>() + k * size,
            .scratch = nullptr,
        };
        std::vector<float> scratch(static_cast<size_t>(AttentionGradientScratch(part)));
        part.scratch = scratch.data();
        loops->of_float.attention_gradient(part);
      }
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_LT(Distance(found[i], expected[i]), (expected[i].abs().max().item<double>() + 1e-3) * 1e-5)
            << loops->instructions << ", of input " << i;
      }
    }
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const at::Tensor x = at::ones({3, 2, 8});
  const SequencePart part = {.count = 3, .positions = 3};
  EXPECT_THROW(AttendInRows(x.to(at::kDouble), x.to(at::kDouble), x.to(at::kDouble), {&part, 1}, 0), c10::Error);
  EXPECT_THROW(AttendInRows(x, x.to(at::kBFloat16), x, {&part, 1}, 0), c10::Error);
  EXPECT_THROW(AttendInRows(x, at::ones({3, 2, 7}), x, {&part, 1}, 0), c10::Error);
  const SequencePart blind = {.count = 3, .positions = 3, .visible = at::ones({3, 3}, at::kBool).triu(1)};
  EXPECT_THROW(AttendInRows(x, x, x, {&blind, 1}, 0), c10::Error);
}

// The distance of two floats in units in the last place.
double Ulps(float found, double expected) {
  const auto nearest = static_cast<float>(expected);
  const float unit = std::nextafter(std::abs(nearest), std::numeric_limits<float>::infinity()) - std::abs(nearest);
  return std::abs(static_cast<double>(found) - expected) / static_cast<double>(unit);
}

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (float value = -87.0F; value < 88.7F; value += 0.00173F) x.push_back(value);
  std::vector<float> y(x.size());
  LoopsInUse().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, Ulps(y[i], std::exp(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
}

TEST(Exp, OfExtremeNumbersIsThatOfTheStandardLibrary) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0F, -kInfinity, kInfinity, -200, 200, -105, 89, std::nanf("")};
  std::vector<float> y(x.size());
  LoopsInUse().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i + 1 < x.size(); ++i) EXPECT_EQ(y[i], std::exp(x[i])) << x[i];
  EXPECT_TRUE(std::isnan(y.back()));
  const float small = -95.0F;  // the result is not normal
  float found = 0;
  LoopsInUse().exp(&small, &found, 1);
  EXPECT_NEAR(found / std::exp(small), 1.0, 1e-4);
}

}  // namespace
}  // namespace tdock::kernels
