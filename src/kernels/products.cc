#include "kernels/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

// Rows and outputs are divided into blocks, which threads compute: the weights of a block stay in a core's cache.
template <class T>
void MultiplyInBlocks(const ProductBlock<T>& whole) {
  constexpr int64_t kRowsOfBlock = 512;
  const TypedLoops<T>& loops = BestLoops().of<T>();
  const auto blocks_of = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
  const int64_t output_blocks = blocks_of(whole.outputs, kOutputsOfBlock);
  const int64_t blocks = blocks_of(whole.rows, kRowsOfBlock) * output_blocks;
  const int64_t work = std::min(whole.rows, kRowsOfBlock) * kOutputsOfBlock * whole.inputs;  // of a block
  at::parallel_for(
      0, blocks, std::max<int64_t>((1 << 18) / std::max<int64_t>(work, 1), 1), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(ProductScratch(whole.inputs)));
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = i / output_blocks * kRowsOfBlock, output = i % output_blocks * kOutputsOfBlock;
          ProductBlock<T> block = whole;
          block.x += row * whole.inputs;
          block.weight += output * whole.inputs;
          if (block.bias != nullptr) block.bias += output;
          block.y += row * whole.y_stride + output;
          block.rows = std::min(whole.rows - row, kRowsOfBlock);
          block.outputs = std::min(whole.outputs - output, kOutputsOfBlock);
          block.scratch = scratch.data();
          loops.multiply(block);
        }
      });
}

}  // namespace

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  CheckKernelTensor(x, "products");
  const auto fits = [&](const at::Tensor& other) { return other.is_cpu() && other.scalar_type() == x.scalar_type(); };
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1) && fits(weight), "a weight of ",
              weight.scalar_type(), " ", weight.sizes(), " does not fit ", x.scalar_type(), " ", x.sizes());
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0) && fits(bias)),
              "a bias does not fit a weight of ", weight.scalar_type(), " ", weight.sizes());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor y = at::empty(shape, x.options());
  if (y.numel() == 0) return y;
  const at::Tensor rows = x.contiguous(), weights = weight.contiguous();
  const at::Tensor biases = bias.defined() ? bias.contiguous() : bias;
  WithTypeOf(x, [&](auto type) {
    using T = decltype(type);
    MultiplyInBlocks<T>({.x = rows.const_data_ptr<T>(),
                         .weight = weights.const_data_ptr<T>(),
                         .bias = biases.defined() ? biases.const_data_ptr<T>() : nullptr,
                         .rows = y.numel() / weight.size(0),
                         .outputs = weight.size(0),
                         .inputs = weight.size(1),
                         .y = y.mutable_data_ptr<T>(),
                         .y_stride = weight.size(0),
                         .scratch = nullptr});
  });
  return y;
}

}  // namespace tdock::kernels
