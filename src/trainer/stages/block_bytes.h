// Numbers stored in a byte each, for the moments of an optimizer (Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization", arXiv:2110.02861).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tdock::trainer {

// A flat tensor in blocks of 256 numbers, each relative to the largest magnitude of its block, by the paper's dynamic
// map: exact to a hundredth of the largest, and smaller numbers keep their sign and power of ten, down to a millionth
// of it. Not thread-safe.
class BlockBytes {
 public:
  static constexpr int64_t kBlock = 256;

  // What is stored: any number, or only numbers that are not negative. Of the latter none but zero becomes zero: a
  // second moment of zero beside a first moment that is not would make a step of any size.
  enum class Range { kSigned, kNotNegative };

  // All zero. `size` ≥ 1.
  BlockBytes(int64_t size, Range range, const at::Device& device);

  // The numbers from `begin`, a multiple of kBlock, as float [size].
  at::Tensor Load(int64_t begin, int64_t size) const;
  // `values`: float [size], finite; its end is the end of all or of a block. Each becomes the nearest that there is a
  // code for.
  void Store(int64_t begin, const at::Tensor& values);
  // The same, of numbers that are not negative, but each becomes one of its two neighbours, so that its mean over
  // `draw`, uniform in 0…1, is the number itself (but for what must not become zero). A moment that changes by less
  // than the distance of two codes in a step would otherwise never change. Equal draws give equal codes, on as many
  // threads as there are.
  void StoreAtRandom(int64_t begin, const at::Tensor& values, double draw);

  // Everything that is stored: uint8 [size] and float [blocks].
  const at::Tensor& codes() const { return codes_; }
  const at::Tensor& scales() const { return scales_; }

  int64_t bytes() const { return codes_.numel() + 4 * scales_.numel(); }

 private:
  // Numbers [blocks, kBlock], relative to the scales [blocks] of their blocks.
  struct Relative {
    at::Tensor values, scales;
  };
  static Relative RelativeOf(const at::Tensor& values);
  void Put(int64_t begin, int64_t size, const at::Tensor& codes, const at::Tensor& scales);

  Range range_;
  at::Tensor code_values_;  // float [256], ascending
  at::Tensor boundaries_;   // float [255]: what lies above the i-th is the code i + 1 or a higher one
  at::Tensor codes_;        // uint8 [size]
  at::Tensor scales_;       // float [blocks]
};

}  // namespace tdock::trainer
