#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
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
        at::Tensor expected = x.to(at::kDouble).mm(values.to(at::kDouble).t());
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
  for (const double value : {HUGE_VAL, std::nan("")}) {  // is still seen in what is computed with it
    at::Tensor broken = at::ones({1, 40});
    broken[0][3].fill_(value);
    EXPECT_FALSE(Product(at::ones({1, 40}), PackedMatrix(broken, PackedFormat::kInt8), {}).isfinite().item<bool>());
  }
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

void ExpectPairsAreMultiplied(const Loops& loops) {
  const int64_t rows = 5, outputs = 27, inputs = 51;
  const at::Tensor x = Normal({rows, inputs}, 6, at::kBFloat16), weight = Normal({outputs, inputs}, 7, at::kBFloat16);
  std::vector<std::byte> panel(static_cast<size_t>(PanelBytes(PackedFormat::kBFloat16, inputs)));
  std::vector<float> pairs(static_cast<size_t>(rows * DividedUp(inputs, 2)));
  const auto& of_bfloat16 = loops.of_bfloat16;
  of_bfloat16.pack_panel(weight.const_data_ptr<at::BFloat16>(), outputs, inputs, PackedFormat::kBFloat16, panel.data(),
                         nullptr);
  of_bfloat16.pack_tile(x.const_data_ptr<at::BFloat16>(), rows, inputs, true, pairs.data());
  at::Tensor y = at::empty({rows, outputs}, at::kBFloat16);
  of_bfloat16.multiply({.x = pairs.data(),
                        .pairs = true,
                        .rows = rows,
                        .inputs = inputs,
                        .format = PackedFormat::kBFloat16,
                        .panels = panel.data(),
                        .outputs = outputs,
                        .y = y.mutable_data_ptr<at::BFloat16>(),
                        .y_stride = outputs});
  EXPECT_LT(LargestDifference(y, x.to(at::kDouble).mm(weight.to(at::kDouble).t())), Tolerance(at::kBFloat16));
}

// Each instruction set has its own loops; others than the best would otherwise run on other machines only.
TEST(Loops, OfEveryInstructionSetMultiply) {
  const int64_t rows = 13, outputs = 21, inputs = 50;
  const at::Tensor x = Normal({rows, inputs}, 1), weight = Normal({outputs, inputs}, 2);
  for (const Loops* loops : AllLoops()) {
    SCOPED_TRACE(loops->instructions);
    for (const PackedFormat format : {PackedFormat::kFloat, PackedFormat::kBFloat16, PackedFormat::kInt8}) {
      const auto* const of_float = &loops->of_float;
      std::vector<std::byte> panel(static_cast<size_t>(PanelBytes(format, inputs)));
      std::vector<float> scales(static_cast<size_t>(PanelScales(format, inputs)));
      of_float->pack_panel(weight.const_data_ptr<float>(), outputs, inputs, format, panel.data(), scales.data());
      const auto multiply = [&](int64_t row, int64_t count) {
        std::vector<float> tiles(static_cast<size_t>(count * inputs));
        const RowTiles of_rows(count, loops->tile_rows);
        for (int64_t tile = 0; tile < of_rows.count; ++tile) {
          of_float->pack_tile(x.const_data_ptr<float>() + (row + of_rows.begin(tile)) * inputs, of_rows.size(tile),
                              inputs, false, tiles.data() + of_rows.begin(tile) * inputs);
        }
        at::Tensor y = at::empty({count, outputs});
        of_float->multiply({.x = tiles.data(),
                            .rows = count,
                            .inputs = inputs,
                            .format = format,
                            .panels = panel.data(),
                            .scales = scales.data(),
                            .outputs = outputs,
                            .y = y.mutable_data_ptr<float>(),
                            .y_stride = outputs});
        return y;
      };
      const at::Tensor y = multiply(0, rows);
      const at::Tensor unpacked = PackedMatrix(weight, format).Unpack();
      EXPECT_LT(LargestDifference(y, x.to(at::kDouble).mm(unpacked.to(at::kDouble).t())), Tolerance(at::kFloat));
      for (int64_t row = 0; row < rows; ++row) EXPECT_TRUE(SameBits(multiply(row, 1), y.narrow(0, row, 1))) << row;
    }
    if (loops->multiplies_pairs) ExpectPairsAreMultiplied(*loops);
  }
}

}  // namespace
}  // namespace tdock::kernels
