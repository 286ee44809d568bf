#include "kernels/packed_matrix.h"

#include <ATen/ATen.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "core/base/huge_pages.h"
#include "kernels/loops.h"
#include "kernels/panels.h"
#include "kernels/parallel.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

// The weight of an output of a panel.
float WeightIn(const std::byte* panel, PackedFormat format, int64_t output, int64_t input) {
  switch (format) {
    case PackedFormat::kFloat:
      return reinterpret_cast<const float*>(panel)[input * kPanelOutputs + output];
    case PackedFormat::kBFloat16:
      return static_cast<float>(
          reinterpret_cast<const c10::BFloat16*>(panel)[(input / 2 * kPanelOutputs + output) * 2 + input % 2]);
    case PackedFormat::kInt8: {
      const std::byte* const group = panel + PanelBytes(format, kInt8Group) * (input / kInt8Group);
      const int64_t place = input % kInt8Group;
      const auto four = static_cast<int8_t>(group[(place / 4 * kPanelOutputs + output) * 4 + place % 4]);
      return static_cast<float>(four) * reinterpret_cast<const float*>(group)[kFoursOfGroup * kPanelOutputs + output];
    }
  }
  return 0;
}

}  // namespace

PackedMatrix::PackedMatrix(const at::Tensor& weight, PackedFormat format)
    : outputs_(weight.dim() == 2 ? weight.size(0) : 0),
      inputs_(weight.dim() == 2 ? weight.size(1) : 0),
      format_(format) {
  CheckKernelTensor(weight, "weights");
  TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0, "a weight is [outputs, inputs], not ", weight.sizes());
  const at::Tensor rows = weight.detach().contiguous();
  const int64_t panels = DividedUp(outputs_, kPanelOutputs);
  const int64_t bytes = PanelBytes(format, inputs_);
  const auto size = static_cast<size_t>(panels * bytes);
  HugePageAllocator<std::byte> allocator;
  panels_ = {allocator.allocate(size),
             [allocator, size](std::byte* memory) mutable { allocator.deallocate(memory, size); }};
  WithTypeOf(weight, [&](auto type) {
    using T = decltype(type);
    ParallelFor(panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t output = panel * kPanelOutputs;
        LoopsInUse().of<T>().pack_panel(rows.const_data_ptr<T>() + output * inputs_,
                                        std::min(outputs_ - output, kPanelOutputs), inputs_, format,
                                        panels_.get() + panel * bytes);
      }
    });
  });
}

int64_t PackedMatrix::BytesFor(int64_t outputs, int64_t inputs, PackedFormat format) {
  return DividedUp(outputs, kPanelOutputs) * PanelBytes(format, inputs);
}

at::Tensor PackedMatrix::Unpack() const {
  at::Tensor weight = at::empty({outputs_, inputs_}, at::kFloat);
  const int64_t bytes = PanelBytes(format_, inputs_);
  for (int64_t o = 0; o < outputs_; ++o) {
    const int64_t panel = o / kPanelOutputs;
    for (int64_t i = 0; i < inputs_; ++i) {
      weight.mutable_data_ptr<float>()[o * inputs_ + i] =
          WeightIn(panels_.get() + panel * bytes, format_, o % kPanelOutputs, i);
    }
  }
  return weight;
}

}  // namespace tdock::kernels
