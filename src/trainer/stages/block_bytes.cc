#include "trainer/stages/block_bytes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace tdock::trainer {
namespace {

// The decades 10⁻⁶…1, each of twice as many values as the one below: the middles of equal parts of 0.1…1.
std::vector<float> DynamicMap(BlockBytes::Range range) {
  constexpr int kDecades = 7;
  const bool with_signs = range == BlockBytes::Range::kSigned;
  std::vector<float> values = {0.0f, 1.0f};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int parts = 1 << (with_signs ? decade : decade + 1);
    const double unit = std::pow(10.0, decade - (kDecades - 1));
    for (int i = 0; i < parts; ++i) {
      const auto value = static_cast<float>(unit * (0.1 + 0.9 * (i + 0.5) / parts));
      values.push_back(value);
      if (with_signs) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<float> Boundaries(const std::vector<float>& values, BlockBytes::Range range) {
  std::vector<float> boundaries;
  for (size_t i = 1; i < values.size(); ++i) boundaries.push_back((values[i - 1] + values[i]) / 2);
  if (range == BlockBytes::Range::kNotNegative) boundaries.front() = 0;
  return boundaries;
}

int64_t BlocksOf(int64_t size) { return (size + BlockBytes::kBlock - 1) / BlockBytes::kBlock; }

// A number of 0…1 for each number of as many blocks as there are scales: each uniform if the draw is, and all together
// spread evenly, since they are the draw plus multiples of irrational numbers, less whole ones.
at::Tensor Draws(double draw, const at::Tensor& scales) {
  const auto of_blocks = at::arange(scales.numel(), scales.options().dtype(at::kDouble)).mul_(std::numbers::sqrt2);
  const auto in_block = at::arange(BlockBytes::kBlock, of_blocks.options()).mul_(std::numbers::phi);
  const at::Tensor first = of_blocks.add_(draw).frac_().to(at::kFloat).unsqueeze(1);
  return first.add(in_block.frac_().to(at::kFloat)).frac_().view({-1});
}

}  // namespace

BlockBytes::BlockBytes(int64_t size, Range range, const at::Device& device) : range_(range) {
  const std::vector<float> values = DynamicMap(range);
  const auto zero = static_cast<int64_t>(std::find(values.begin(), values.end(), 0.0f) - values.begin());
  code_values_ = at::tensor(values).to(device);
  boundaries_ = at::tensor(Boundaries(values, range)).to(device);
  codes_ = at::full({size}, zero, at::TensorOptions(device).dtype(at::kByte));
  scales_ = at::zeros({BlocksOf(size)}, at::TensorOptions(device).dtype(at::kFloat));
}

at::Tensor BlockBytes::Load(int64_t begin, int64_t size) const {
  const at::Tensor scales = scales_.narrow(0, begin / kBlock, BlocksOf(size)).repeat_interleave(kBlock);
  const at::Tensor codes = codes_.narrow(0, begin, size);
  return code_values_.index_select(0, codes.to(at::kInt)).mul_(scales.narrow(0, 0, size));
}

BlockBytes::Relative BlockBytes::RelativeOf(const at::Tensor& values) {
  const int64_t blocks = BlocksOf(values.numel());
  const at::Tensor padded = at::constant_pad_nd(values, {0, blocks * kBlock - values.numel()}).view({blocks, kBlock});
  const at::Tensor scales = padded.abs().amax(1);
  // A block of zeros is divided by one.
  return {padded / scales.masked_fill(scales == 0, 1).unsqueeze(1), scales};
}

void BlockBytes::Put(int64_t begin, int64_t size, const at::Tensor& codes, const at::Tensor& scales) {
  codes_.narrow(0, begin, size).copy_(codes.view({-1}).narrow(0, 0, size));
  scales_.narrow(0, begin / kBlock, scales.size(0)).copy_(scales);
}

void BlockBytes::Store(int64_t begin, const at::Tensor& values) {
  const Relative relative = RelativeOf(values);
  Put(begin, values.numel(), at::bucketize(relative.values, boundaries_, /*out_int32=*/true), relative.scales);
}

void BlockBytes::StoreAtRandom(int64_t begin, const at::Tensor& values, double draw) {
  TORCH_CHECK(range_ == Range::kNotNegative, "numbers with signs are stored at the nearest code, not at random");
  const Relative relative = RelativeOf(values);
  const at::Tensor x = relative.values.view({-1});
  // The code below, or that of the number itself.
  const at::Tensor codes = at::bucketize(x, code_values_, /*out_int32=*/true, /*right=*/true).sub_(1);
  const at::Tensor below = code_values_.index_select(0, codes);
  const at::Tensor gap = code_values_.index_select(0, (codes + 1).clamp_max_(code_values_.numel() - 1)).sub_(below);
  codes.add_(Draws(draw, relative.scales).mul_(gap) < x - below);
  Put(begin, values.numel(), at::maximum(codes, (x > 0).to(codes.scalar_type())), relative.scales);
}

}  // namespace tdock::trainer
