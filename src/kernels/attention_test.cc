#include "kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/loops.h"

namespace tdock::kernels {
namespace {

struct Case {
  AttentionShape shape;
  int64_t positions;  // of the sequence
};

const Case kCases[] = {{{1, 1, 8}, 1},    {{2, 2, 64}, 17}, {{4, 2, 20}, 40},  {{7, 1, 64}, 129},  {{14, 2, 80}, 33},
                       {{6, 3, 96}, 300}, {{3, 3, 33}, 64}, {{8, 1, 256}, 50}, {{5, 1, 128}, 1000}};

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::normal(0.0, 1.0, shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

// How rows [positions, kv heads, head dim] lie in memory.
enum class Order { kTokensFirst, kHeadsFirst };

// The rows in blocks of their own memory, the blocks in falling order, with space between that is not a number.
template <class T>
class Blocks {
 public:
  Blocks(const at::Tensor& rows, int64_t block_tokens, Order order) {
    const int64_t kv_heads = rows.size(1), head_dim = rows.size(2);
    rows_.block_tokens = block_tokens;
    rows_.head_stride = order == Order::kTokensFirst ? head_dim : block_tokens * (head_dim + 3);
    rows_.token_stride = order == Order::kTokensFirst ? kv_heads * head_dim + 5 : head_dim + 3;
    const int64_t size = kv_heads * block_tokens * (head_dim + 3) + block_tokens * 5;
    const int64_t count = (rows.size(0) + block_tokens - 1) / block_tokens;
    memory_.assign(static_cast<size_t>(size * count), T(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t b = 0; b < count; ++b) blocks_.push_back(memory_.data() + (count - 1 - b) * size);
    const at::Tensor typed = rows.to(c10::CppTypeToScalarType<T>::value).contiguous();
    for (int64_t p = 0; p < rows.size(0); ++p) {
      for (int64_t h = 0; h < kv_heads; ++h) {
        const T* from = typed.const_data_ptr<T>() + (p * kv_heads + h) * head_dim;
        T* block = memory_.data() + (count - 1 - p / block_tokens) * size;
        std::copy(from, from + head_dim, block + h * rows_.head_stride + (p % block_tokens) * rows_.token_stride);
      }
    }
    rows_.blocks = blocks_.data();
  }
  Blocks(const Blocks&) = delete;

  const BlockedRows<T>& rows() const { return rows_; }

 private:
  std::vector<T> memory_;
  std::vector<const T*> blocks_;
  BlockedRows<T> rows_ = {};
};

template <class T>
std::vector<T> Attended(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                        const Visible& visible, const AttentionShape& shape, int64_t block_tokens, Order order) {
  const Blocks<T> of_keys(keys, block_tokens, order), of_values(values, block_tokens, order);
  const at::Tensor typed = query.to(c10::CppTypeToScalarType<T>::value).contiguous();
  std::vector<T> output(static_cast<size_t>(shape.heads * shape.head_dim));
  std::vector<float> scratch(static_cast<size_t>(AttentionScratch(shape, visible.count)));
  Attend(typed.const_data_ptr<T>(), of_keys.rows(), of_values.rows(), visible, shape, output.data(), scratch.data());
  return output;
}

at::Tensor Expected(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                    const std::vector<int64_t>& positions, const AttentionShape& shape) {
  const at::Tensor index = at::tensor(positions, at::kLong);
  const auto heads_first = [&](const at::Tensor& rows) {
    return rows.index_select(0, index).to(at::kDouble).transpose(0, 1).unsqueeze(0).contiguous();
  };
  return at::scaled_dot_product_attention(query.to(at::kDouble).view({1, shape.heads, 1, shape.head_dim}),
                                          heads_first(keys), heads_first(values), std::nullopt, 0.0, false,
                                          std::nullopt, /*enable_gqa=*/true)
      .view({-1});
}

template <class T>
void CompareWithLibtorch(double tolerance) {
  for (const Case& c : kCases) {
    const at::ScalarType type = c10::CppTypeToScalarType<T>::value;
    const auto rounded = [&](at::IntArrayRef shape, uint64_t seed) {
      return Random(shape, seed).to(type).to(at::kFloat);
    };
    const at::Tensor query = rounded({c.shape.heads, c.shape.head_dim}, 1) * 2;
    const at::Tensor keys = rounded({c.positions, c.shape.kv_heads, c.shape.head_dim}, 2);
    const at::Tensor values = rounded({c.positions, c.shape.kv_heads, c.shape.head_dim}, 3);
    std::vector<int64_t> all(static_cast<size_t>(c.positions)), some;
    std::iota(all.begin(), all.end(), 0);
    for (const int64_t p : all) {
      if (p % 7 != 2 || p + 1 == c.positions) some.push_back(p);
    }
    const std::vector<int64_t> window(all.begin() + c.positions / 3, all.end());
    const auto check = [&](const Visible& visible, const std::vector<int64_t>& positions) {
      const std::vector<T> one_block =
          Attended<T>(query, keys, values, visible, c.shape, c.positions, Order::kTokensFirst);
      const at::Tensor expected = Expected(query, keys, values, positions, c.shape);
      for (size_t i = 0; i < one_block.size(); ++i) {
        EXPECT_NEAR(static_cast<float>(one_block[i]), expected[static_cast<int64_t>(i)].item<double>(), tolerance)
            << c.shape.heads << " heads of " << c.shape.head_dim << ", " << positions.size() << " positions, " << i;
      }
      for (const int64_t block_tokens : {1, 16, 24}) {
        for (const Order order : {Order::kTokensFirst, Order::kHeadsFirst}) {
          const std::vector<T> other = Attended<T>(query, keys, values, visible, c.shape, block_tokens, order);
          EXPECT_EQ(std::memcmp(one_block.data(), other.data(), other.size() * sizeof(T)), 0)
              << c.shape.heads << " heads of " << c.shape.head_dim << " in blocks of " << block_tokens;
        }
      }
    };
    const auto count = [](const std::vector<int64_t>& positions) { return static_cast<int64_t>(positions.size()); };
    check({.first = 0, .count = count(all)}, all);
    check({.first = window.front(), .count = count(window)}, window);
    check({.count = count(some), .positions = some.data()}, some);
  }
}

TEST(Attention, EqualsThatOfLibtorchInAnyBlocks) { CompareWithLibtorch<float>(3e-6); }

TEST(Attention, OfBFloat16IsRoundedOnce) { CompareWithLibtorch<c10::BFloat16>(8e-3); }

TEST(Attention, DependsOnWhatIsVisibleAndNotWhere) {
  const AttentionShape shape = {6, 2, 48};
  const at::Tensor query = Random({6, 48}, 1), keys = Random({100, 2, 48}, 2), values = Random({100, 2, 48}, 3);
  const at::Tensor padding = at::full({11, 2, 48}, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> alone =
      Attended<float>(query, keys, values, {.first = 0, .count = 100}, shape, 100, Order::kTokensFirst);
  const std::vector<float> behind_padding = Attended<float>(query, at::cat({padding, keys}), at::cat({padding, values}),
                                                            {.first = 11, .count = 100}, shape, 8, Order::kHeadsFirst);
  EXPECT_EQ(alone, behind_padding);
  std::vector<int64_t> spread;
  for (int64_t p = 0; p < 100; ++p) spread.push_back(p < 50 ? p : p + 11);
  const auto with_gap = [&](const at::Tensor& rows) {
    return at::cat({rows.narrow(0, 0, 50), padding, rows.narrow(0, 50, 50)});
  };
  EXPECT_EQ(alone, Attended<float>(query, with_gap(keys), with_gap(values), {.count = 100, .positions = spread.data()},
                                   shape, 16, Order::kHeadsFirst));
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
  BestLoops().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, Ulps(y[i], std::exp(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
}

TEST(Exp, OfExtremeNumbersIsThatOfTheStandardLibrary) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0F, -kInfinity, kInfinity, -200, 200, -105, 89, std::nanf("")};
  std::vector<float> y(x.size());
  BestLoops().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i + 1 < x.size(); ++i) EXPECT_EQ(y[i], std::exp(x[i])) << x[i];
  EXPECT_TRUE(std::isnan(y.back()));
  const float small = -95.0F;  // the result is not normal
  float found = 0;
  BestLoops().exp(&small, &found, 1);
  EXPECT_NEAR(found / std::exp(small), 1.0, 1e-4);
}

}  // namespace
}  // namespace tdock::kernels
