#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

#include "core/base/rng.h"
#include "kernels/loops.h"
#include "kernels/packed_matrix.h"
#include "kernels/products.h"
#include "kernels/testing/tensors.h"

namespace tdock::kernels {
namespace {

// Half a unit in the last place of numbers below 32, and what float32 adds.
double Tolerance(at::ScalarType type) { return type == at::kFloat ? 2e-5 : 0.0651; }

// In float64, with what products in a format multiply: for int8, inputs are rounded as weights are.
at::Tensor ExpectedProduct(const at::Tensor& x, const PackedMatrix& weight) {
  const at::Tensor inputs = weight.format() == PackedFormat::kInt8 ? PackedMatrix(x, PackedFormat::kInt8).Unpack() : x;
  return inputs.to(at::kDouble).mm(weight.Unpack().to(at::kDouble).t());
}

TEST(Product, OfRowsTogetherEqualsThatOfEachAlone) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t inputs : {7, 64, 1100}) {
      const at::Tensor x = Normal({70, inputs}, 1, type), weight = Normal({177, inputs}, 2, type);
      const at::Tensor bias = Normal({177}, 3, type);
      const at::Tensor together = Product(x, weight, bias);
      const at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
      EXPECT_LT(LargestDifference(together, expected), type == at::kFloat ? 2e-4 : 0.6) << type << " " << inputs;
      for (int64_t rows = 1; rows <= 70; ++rows) {
        EXPECT_TRUE(SameBits(Product(x.narrow(0, 70 - rows, rows), weight, bias), together.narrow(0, 70 - rows, rows)))
            << type << ": " << rows << " rows of " << inputs;
      }
      for (int64_t output = 0; output < 177; ++output) {
        EXPECT_TRUE(
            SameBits(Product(x, weight.narrow(0, output, 1), bias.narrow(0, output, 1)), together.narrow(1, output, 1)))
            << type << ": output " << output << " of " << inputs;
      }
    }
  }
}

// Sizes with rows in several blocks and tiles, and panels that are not full.
TEST(Product, WithPackedWeightsIsThatWithTheirValues) {
  for (uint64_t i = 0; i < 40; ++i) {
    Rng random(DeriveSeed(1, i));
    const auto size = [&](uint64_t most) { return static_cast<int64_t>(1 + random.Below(most)); };
    const int64_t rows = i % 4 == 0 ? 480 + size(30) : size(40), inputs = size(150), outputs = size(200);
    for (const at::ScalarType type : kTypes) {
      const at::Tensor x = Normal({rows, inputs}, i, type), weight = Normal({outputs, inputs}, i + 100, type);
      const at::Tensor bias = i % 2 == 0 ? Normal({outputs}, i + 200, type) : at::Tensor();
      for (const PackedFormat format : {PackedFormat::kFloat, PackedFormat::kBFloat16, PackedFormat::kInt8}) {
        SCOPED_TRACE(testing::Message() << rows << "x" << inputs << "x" << outputs << " " << type << " format "
                                        << static_cast<int>(format));
        const PackedMatrix packed(weight, format);
        const at::Tensor values = packed.Unpack();
        const at::Tensor y = Product(x, packed, bias);
        at::Tensor expected = ExpectedProduct(x, packed);
        if (bias.defined()) expected = expected + bias.to(at::kDouble);
        EXPECT_LT(LargestDifference(y, expected), type == at::kFloat ? 2e-4 : 0.3);
        const int64_t row = size(static_cast<uint64_t>(rows)) - 1;
        EXPECT_TRUE(SameBits(Product(x.narrow(0, row, 1), packed, bias), y.narrow(0, row, 1)));
        const bool is_exact = format == (type == at::kFloat ? PackedFormat::kFloat : PackedFormat::kBFloat16);
        if (is_exact) {
          EXPECT_TRUE(SameBits(values, weight.to(at::kFloat)));
          EXPECT_TRUE(SameBits(Product(x, weight, bias), y));
          EXPECT_TRUE(SameBits(Product(x, weight.to(at::kFloat), bias), y));
        }
      }
    }
  }
}

TEST(PackedMatrix, RoundsToItsFormat) {
  const at::Tensor weight = Normal({70, 100}, 1);
  EXPECT_TRUE(
      SameBits(PackedMatrix(weight, PackedFormat::kBFloat16).Unpack(), weight.to(at::kBFloat16).to(at::kFloat)));
  const at::Tensor x = Normal({5, 100}, 2, at::kBFloat16);  // weights in float32 are rounded to bfloat16
  EXPECT_TRUE(SameBits(Product(x, weight, {}), Product(x, weight.to(at::kBFloat16), {})));
  // Each number is within half a step of its group, of which the largest is exact but for the rounding of the scale.
  const at::Tensor rounded = PackedMatrix(weight, PackedFormat::kInt8).Unpack();
  for (int64_t begin = 0; begin < 100; begin += kInt8Group) {
    const int64_t count = std::min<int64_t>(100 - begin, kInt8Group);
    const at::Tensor group = weight.narrow(1, begin, count), of_group = rounded.narrow(1, begin, count);
    const at::Tensor step = group.abs().amax(1, true) / 127;
    EXPECT_LT(((of_group - group).abs() / step).max().item<double>(), 0.5001);
    EXPECT_LT(((of_group.abs().amax(1, true) - group.abs().amax(1, true)).abs() / step).max().item<double>(), 1e-3);
  }
  EXPECT_TRUE(SameBits(PackedMatrix(at::zeros({3, 40}), PackedFormat::kInt8).Unpack(), at::zeros({3, 40})));
  const auto with = [](double value) {
    at::Tensor ones = at::ones({1, 40});
    ones[0][3].fill_(value);
    ones[0][19].fill_(value);
    return ones;
  };
  const at::Tensor large = with(3e38);
  EXPECT_LT((PackedMatrix(large, PackedFormat::kInt8).Unpack() / large - 1).abs()[0][3].item<double>(), 1e-6);
  for (const double value : {HUGE_VAL, std::nan(""), -std::nan("")}) {  // is still seen in what is computed with it
    const at::Tensor broken = with(value);
    EXPECT_FALSE(Product(at::ones({1, 40}), PackedMatrix(broken, PackedFormat::kInt8), {}).isfinite().item<bool>());
    EXPECT_FALSE(Product(broken, PackedMatrix(at::ones({1, 40}), PackedFormat::kInt8), {}).isfinite().item<bool>());
  }
}

TEST(Multiply, OfTransposedViewsIsThatOfTheirCopies) {
  for (uint64_t i = 0; i < 40; ++i) {
    Rng random(DeriveSeed(2, i));
    const auto size = [&](uint64_t most) { return static_cast<int64_t>(1 + random.Below(most)); };
    // The last is packed in several parts.
    const int64_t rows = i == 39 ? 2000 : i % 4 == 0 ? 480 + size(30) : size(40);
    const int64_t inputs = i == 39 ? 5000 : size(150), outputs = size(i == 39 ? 3 : 200);
    SCOPED_TRACE(testing::Message() << rows << "x" << inputs << "x" << outputs);
    const at::Tensor a = Normal({rows, inputs}, i), b = Normal({inputs, outputs}, i + 100);
    const at::Tensor a_view = a.t().contiguous().t(), b_view = b.t().contiguous().t();
    const at::Tensor expected = Product(a, b_view.t(), {});
    EXPECT_TRUE(SameBits(Multiply(a, b), expected));
    EXPECT_TRUE(SameBits(Multiply(a_view, b), expected));
    EXPECT_TRUE(SameBits(Multiply(a, b_view), expected));
    EXPECT_TRUE(SameBits(Multiply(a_view, b_view), expected));
  }
  EXPECT_EQ(Multiply(at::ones({0, 3}), at::ones({3, 2})).size(1), 2);
  EXPECT_TRUE(SameBits(Multiply(at::ones({2, 0}), at::ones({0, 3})), at::zeros({2, 3})));
  EXPECT_THROW(Multiply(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
  EXPECT_THROW(Multiply(at::ones({2, 3}, at::kBFloat16), at::ones({3, 2}, at::kBFloat16)), c10::Error);
  EXPECT_THROW(Multiply(at::ones({3}), at::ones({3, 2})), c10::Error);
}

TEST(Product, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = Normal({600, 96}, 1), weight = Normal({200, 96}, 2);
  at::set_num_threads(1);
  const at::Tensor alone = Product(x, weight, {});
  at::set_num_threads(2);
  EXPECT_TRUE(SameBits(Product(x, weight, {}), alone));
  at::set_num_threads(1);
}

TEST(Product, RefusesWhatDoesNotFit) {
  EXPECT_THROW(Product(at::ones({2, 3}), at::ones({2, 4}), {}), c10::Error);
  EXPECT_THROW(Product(at::ones({2, 0}), at::ones({2, 0}), {}), c10::Error);
  EXPECT_THROW(Product(at::ones({2, 3}), at::ones({2, 3}, at::kDouble), {}), c10::Error);
  EXPECT_THROW(Product(at::ones({2, 3}), at::ones({2, 3}), at::ones({3})), c10::Error);
  EXPECT_THROW(Product(at::ones({2, 3}, at::kDouble), at::ones({2, 3}, at::kDouble), {}), c10::Error);
}

// By these loops instead of those in use.
template <class T>
at::Tensor ProductBy(const Loops& loops, const at::Tensor& x, const at::Tensor& weight, PackedFormat format,
                     RowWords words) {
  const int64_t rows = x.size(0), inputs = x.size(1), outputs = weight.size(0), size = WordCount(words, inputs);
  const auto& typed = loops.of<T>();
  const int64_t bytes = PanelBytes(format, inputs);
  std::vector<std::byte> panels(static_cast<size_t>(DividedUp(outputs, kPanelOutputs) * bytes));
  for (int64_t output = 0; output < outputs; output += kPanelOutputs) {
    typed.pack_panel(weight.const_data_ptr<T>() + output * inputs, std::min(outputs - output, kPanelOutputs), inputs,
                     format, panels.data() + output / kPanelOutputs * bytes);
  }
  std::vector<float> tiles(static_cast<size_t>(rows * size));
  const RowTiles of_rows(rows, loops.tile_rows);
  for (int64_t tile = 0; tile < of_rows.count; ++tile) {
    typed.pack_tile(x.const_data_ptr<T>() + of_rows.begin(tile) * inputs, of_rows.size(tile), inputs, words,
                    tiles.data() + of_rows.begin(tile) * size);
  }
  at::Tensor y = at::empty({rows, outputs}, x.options());
  const auto multiply = format == PackedFormat::kInt8 ? typed.multiply_int8 : typed.multiply;
  multiply({.x = tiles.data(),
            .words = words,
            .rows = rows,
            .inputs = inputs,
            .format = format,
            .panels = panels.data(),
            .outputs = outputs,
            .y = y.mutable_data_ptr<T>(),
            .y_stride = outputs});
  return y;
}

// Each instruction set has its own loops; others than the best would otherwise run on other machines only.
TEST(Loops, OfEveryInstructionSetMultiply) {
  const at::Tensor x = Normal({13, 50}, 1), weight = Normal({150, 50}, 2);  // several panels
  const at::Tensor low_x = x.to(at::kBFloat16), low_weight = weight.to(at::kBFloat16);
  for (const Loops* loops : AllLoops()) {
    SCOPED_TRACE(loops->instructions);
    const auto expect_product = [&](PackedFormat format, RowWords words) {
      const at::Tensor y = ProductBy<float>(*loops, x, weight, format, words);
      EXPECT_LT(LargestDifference(y, ExpectedProduct(x, PackedMatrix(weight, format))), Tolerance(at::kFloat));
      for (int64_t row = 0; row < x.size(0); ++row) {
        const at::Tensor alone = ProductBy<float>(*loops, x.narrow(0, row, 1), weight, format, words);
        EXPECT_TRUE(SameBits(alone, y.narrow(0, row, 1))) << row;
      }
    };
    expect_product(PackedFormat::kFloat, RowWords::kNumbers);
    expect_product(PackedFormat::kBFloat16, RowWords::kNumbers);
    expect_product(PackedFormat::kInt8, RowWords::kFours);
    if (!loops->multiplies_pairs) continue;
    const at::Tensor y = ProductBy<at::BFloat16>(*loops, low_x, low_weight, PackedFormat::kBFloat16, RowWords::kPairs);
    EXPECT_LT(LargestDifference(y, low_x.to(at::kDouble).mm(low_weight.to(at::kDouble).t())), Tolerance(at::kBFloat16));
  }
}

// Some have an instruction that multiplies int8 and some do not, but a run's bits do not depend on it.
TEST(Loops, OfOneNameHaveTheSameBits) {
  const std::vector<const Loops*> all = AllLoops();
  const at::Tensor x = Normal({27, 1100}, 1), weight = Normal({150, 1100}, 2);
  int compared = 0;
  for (size_t i = 1; i < all.size(); ++i) {
    if (std::string_view(all[i]->instructions) != all[i - 1]->instructions) continue;
    for (const int64_t rows : {1, 2, 3, 27}) {
      const auto product = [&](size_t loops) {
        return ProductBy<float>(*all[loops], x.narrow(0, 0, rows), weight, PackedFormat::kInt8, RowWords::kFours);
      };
      EXPECT_TRUE(SameBits(product(i - 1), product(i))) << all[i]->instructions << ": " << rows << " rows";
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "this processor has no instruction that multiplies int8";
}

}  // namespace
}  // namespace tdock::kernels
