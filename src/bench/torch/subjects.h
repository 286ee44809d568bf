// The models and samples that are measured. Internal to this module.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/harness/benchmark.h"
#include "core/base/workers.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"

namespace tdock::bench {

// The task of examples/arithmetic, and its model with random weights: 4 layers, 96 wide.
struct Problem {
  std::vector<int32_t> prompt, answer;  // the answer with its end token
};
struct Arithmetic {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<Problem> problems;  // at least 128
  model::Decoder decoder;
};
absl::StatusOr<Arithmetic> MakeArithmetic(const at::Device& device);

// A Llama of 95 million parameters with random weights: 12 layers, 768 wide, 12 heads, 4 key and value heads, 2304 wide
// inside, 8,192 tokens, an untied head.
model::Decoder MakeLlama95m(const at::Device& device);

// `count` random tokens of the decoder's vocabulary.
std::vector<int32_t> RandomTokens(const model::Decoder& decoder, int64_t count, uint64_t seed);

// Workers that share out `samples` over at most `threads` threads, each of which computes alone: as in training, and
// steady on a machine that does other work too.
std::unique_ptr<Workers> ShareSamples(int threads, int64_t samples);

// Returns when all that was started on the decoder's device has ended.
void AwaitDevice(const at::Tensor& tensor);

}  // namespace tdock::bench
