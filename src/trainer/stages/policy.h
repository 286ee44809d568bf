// The model being trained, and the passes of samples through it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/workers.h"
#include "model/decoder/decoder.h"
#include "tdock/rows.h"
#include "trainer/stages/gradient_sum.h"
#include "trainer/stages/layout.h"

namespace tdock::trainer {

struct Policy {
  model::Decoder decoder;
  int64_t version = 0;  // incremented by each optimizer step
};

// How samples are passed through a model.
struct ForwardOptions {
  Workers& workers;              // run the micro-batches, one per thread
  double temperature = 1.0;      // that of the rollout
  int64_t micro_batch_size = 0;  // samples in one pass; 0: as many as max_tokens allows
  int64_t max_tokens = 0;  // prompt and response tokens in one pass, if micro_batch_size is 0; 0: see CutMicroBatches
  int64_t max_row_tokens = 64, max_shared_row_tokens = 0;  // see MakeLayout
  int64_t together = 1;  // consecutive samples that are never cut apart, such as the 2 of a pair
};

// The samples of rows with columns `prompt` and `responses`, as views into them: sample i is row order[i].
absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows, std::span<const int64_t> order);
absl::StatusOr<std::vector<Sequence>> SequencesOf(const Rows& rows);  // in the order of the rows

// A ragged column with one number for each response token, as float [N], sample by sample in the same order; that of a
// dense column is the number of each of its sample's tokens. InvalidArgument names a row whose length differs from its
// response's.
absl::StatusOr<at::Tensor> TokenColumn(const Rows& rows, std::span<const int64_t> order, absl::string_view name,
                                       std::span<const Sequence> samples);

// Of prompts and responses.
int64_t TokensOf(std::span<const Sequence> samples);

// Of a forward pass over each of them with its own prompt: see model/files/flops.h.
double ForwardFlops(const model::ModelConfig& config, std::span<const Sequence> samples);

// Consecutive samples that pass through the model together.
struct MicroBatch {
  std::span<const Sequence> samples;
  int64_t first_sample;  // the position of the first of them among all samples
  int64_t first_token;   // the position of their first response token among those of all samples
  int64_t tokens;        // their response tokens
};
// The cut depends on the samples and the options, not on the number of workers, so that neither does the result. By
// tokens, the number of micro-batches is a power of two where that fits, so that workers get equal shares; none has
// more than max_tokens unless it is one sample. By default max_tokens is 1,024 on the CPU and 16,384 on a GPU.
std::vector<MicroBatch> CutMicroBatches(std::span<const Sequence> samples, const ForwardOptions& options,
                                        const at::Device& device);

// The log-probabilities of all response tokens, float [N], sample by sample, without gradients.
at::Tensor LogProbs(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options);

// The values of a decoder with a value head, float [N], likewise.
at::Tensor Values(const model::Decoder& decoder, std::span<const Sequence> samples, const ForwardOptions& options,
                  Scored scored);

// The loss of micro-batch i, a scalar, computed with `pass`, which is the decoder for this pass alone
// (Decoder::Watched()). Called on the workers, concurrently for different i.
using PassLoss = std::function<at::Tensor(const model::Decoder& pass, size_t i)>;

// Gives each trained parameter the gradient of Σ loss(i) over the micro-batches i, in float32 at least. Gradients are
// added up in the order of the micro-batches, whatever the number of workers.
void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches, const PassLoss& loss);
// The same, but `done` gets those of each unit (Decoder::TrainedOf()) as soon as they are complete, and the parameters
// none.
void Backward(const model::Decoder& decoder, Workers& workers, size_t micro_batches, const PassLoss& loss,
              const GradientSum::Done& done);

}  // namespace tdock::trainer
