// Attention of kernels, through which gradients flow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/attention_in_rows.h"

namespace tdock::model {

// The output of kernels::AttendInRows(), with the gradients of kernels::AttentionGradients(). Gradients flow once.
at::Tensor AttendWithGradients(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                               std::vector<kernels::SequencePart> parts, int64_t window);

}  // namespace tdock::model
