// The model being trained, with the version of its weights.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "model/decoder.h"
#include "tdock/rows.h"
#include "train/layout.h"

namespace tdock::train {

struct Policy {
  model::Decoder decoder;
  int64_t version = 0;  // raised by each optimizer step
};

// How the rows of a stage go through a model.
struct ForwardOptions {
  double temperature = 1.0;      // that of the rollout
  int64_t micro_batch_size = 0;  // samples in one forward pass; 0: all at once
  int64_t max_row_tokens = 64;   // see MakeLayout
};

// The samples of rows with columns `prompt` and `responses`, as views into them.
absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows);

// A ragged column with one number for each response token, as float [N], sample by sample. InvalidArgument names the
// first row in which it is longer or shorter than the response.
absl::StatusOr<at::Tensor> TokenColumn(const Rows& rows, absl::string_view name, std::span<const Sequence> samples);

int64_t ResponseTokens(std::span<const Sequence> samples);

// The samples cut into micro-batches: calls `body` with neighbouring samples and the place of their first token among
// all response tokens.
template <class Body>
void ForEachMicroBatch(std::span<const Sequence> samples, int64_t micro_batch_size, Body&& body) {
  const size_t size = micro_batch_size > 0 ? static_cast<size_t>(micro_batch_size) : std::max<size_t>(samples.size(), 1);
  int64_t first_token = 0;
  for (size_t begin = 0; begin < samples.size(); begin += size) {
    const std::span<const Sequence> micro = samples.subspan(begin, std::min(size, samples.size() - begin));
    body(micro, first_token);
    first_token += ResponseTokens(micro);
  }
}

}  // namespace tdock::train
