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

struct Problem {
  std::vector<int32_t> prompt, answer;  // the answer with its end token
};

// The task of examples/arithmetic, and its model with random weights: 4 layers, 96 wide.
struct Arithmetic {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<Problem> problems;  // at least 128
  model::Decoder decoder;
};
absl::StatusOr<Arithmetic> MakeArithmetic(const at::Device& device);

// A Llama of 95 million parameters with random weights: 12 layers, 768 wide, 12 heads, 4 key and value heads, 2304 wide
// inside, 8,192 tokens, an untied head. In every dtype the same weights, rounded.
model::Decoder MakeLlama95m(const at::Device& device, at::ScalarType dtype = at::kFloat);

// A Llama of the shape of SmolLM2-135M with random weights: 30 layers, 576 wide, 9 heads, 3 key and value heads, 1536
// wide inside, 49,152 tokens, the head tied to the embedding; if quick, one layer and a sixteenth of the tokens.
model::Decoder MakeSmolLm2(const at::Device& device, at::ScalarType dtype, bool quick);

// A Qwen3 of the shape of Qwen3-0.6B with random weights: 28 layers, 1024 wide, 16 heads of 128, 8 key and value heads,
// 3072 wide inside, 151,936 tokens, the head tied to the embedding; if quick, as above.
model::Decoder MakeQwen3(const at::Device& device, at::ScalarType dtype, bool quick);

// A Llama of 1.2 billion parameters with random weights in bfloat16, shaped like Llama 3.2 1B: 16 layers, 2048 wide, 32
// heads, 8 key and value heads, 8192 wide inside, 128,256 tokens, the head tied to the embedding.
model::Decoder MakeLlama1b(const at::Device& device);

// `count` random tokens of the decoder's vocabulary.
std::vector<int32_t> RandomTokens(const model::Decoder& decoder, int64_t count, uint64_t seed);

// Lengths from `shortest` to `longest`, log-uniform: those of the middles of `count` equal parts, long and short in
// turn. A coprime of 7 is wanted for `count`. The peers compute the same.
std::vector<int64_t> MixedLengths(int64_t count, int64_t shortest, int64_t longest);

// A prompt and an answer of random tokens. Equal seeds give equal prompts.
Problem RandomProblem(const model::Decoder& decoder, int64_t prompt, int64_t answer, uint64_t prompt_seed,
                      uint64_t answer_seed);

// Workers that share out `samples` over at most `threads` threads, each of which computes alone: as in training, and
// steady on a machine that does other work too.
std::unique_ptr<Workers> ShareSamples(int threads, int64_t samples);

}  // namespace tdock::bench
