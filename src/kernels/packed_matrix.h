// Weights laid out for products.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tdock::kernels {

enum class PackedFormat {
  kFloat,
  kBFloat16,
  // Each weight is a number from -127 to 127 times a scale, which kInt8Group weights share that are multiplied with
  // neighbouring inputs: the largest of their magnitudes divided by 127. Products round the inputs in the same way.
  kInt8,
};

constexpr int64_t kInt8Group = 32;

// A copy of a weight [outputs, inputs], on the CPU. Its layout is internal to this module: panels of kPanelOutputs
// outputs, whose weights for the same inputs lie side by side. Thread-safe once it is made.
class PackedMatrix {
 public:
  // Rounds to the nearest number of the format. `weight`: float32 or bfloat16, on the CPU; throws c10::Error otherwise.
  PackedMatrix(const at::Tensor& weight, PackedFormat format);

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  PackedFormat format() const { return format_; }
  int64_t bytes() const { return BytesFor(outputs_, inputs_, format_); }
  // How many bytes a weight of this size takes.
  static int64_t BytesFor(int64_t outputs, int64_t inputs, PackedFormat format);

  // The weights as products see them, float32 [outputs, inputs].
  at::Tensor Unpack() const;

  const std::byte* panels() const { return panels_.get(); }

 private:
  int64_t outputs_, inputs_;
  PackedFormat format_;
  std::unique_ptr<std::byte[], std::function<void(std::byte*)>> panels_;
};

}  // namespace tdock::kernels
