// What the passes of a run hold in memory, by running them on a model without data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder/decoder.h"
#include "trainer/stages/layout.h"
#include "trainer/stages/policy.h"

namespace tdock::trainer {

struct PassBytes {
  int64_t activations = 0;  // of the layers, as long as the gradients need them
  int64_t logits = 0;       // what is added until the log-probabilities are there
  int64_t gradients = 0;    // what is added until the gradients are there; 0 without gradients
  int64_t in_heap = 0;      // see TensorBytes
  int64_t peak() const { return activations + logits + gradients; }
};

// What a decoder of half precision computes in float32 all the same on its device, so that it holds float32 copies of
// what goes in, of weights among that: see Decoder::Mix() and Linear.
struct Widened {
  bool attention = false;
  bool products = false;
};

// A model like `decoder`, without data, with the same parameters trained. `fused` says how it computes attention on the
// device of `decoder`: see TensorBytes.
struct Outline {
  model::Decoder decoder;
  bool fused;
  Widened widened;
};
absl::StatusOr<Outline> OutlineOf(const model::Decoder& decoder, int64_t vocabulary, int64_t longest_tokens);

struct PassOptions {
  int64_t max_row_tokens = 64, max_shared_row_tokens = 0;
  double temperature = 1;
  Entropy entropy = Entropy::kNone;
  bool gradients = true;
};
// The micro-batches that hold most of those that `samples` are cut into. What a pass holds is the most of any of them.
struct Passes {
  PassBytes largest;
  int64_t count = 0;  // micro-batches
};
Passes MeasurePasses(const Outline& outline, std::span<const Sequence> samples, const ForwardOptions& forward,
                     const at::Device& device, const PassOptions& options);

// A pass of a rollout's step (engine/model_pass.h): either reads `prompts` pieces of prompts, of `prompt_tokens`
// tokens, or goes on with `rows` answers.
struct GenerationPass {
  int64_t prompts = 0, prompt_tokens = 0, rows = 0;
};
struct GenerationBytes {
  int64_t passes = 0;  // layers, logits, probabilities
  int64_t in_heap = 0;
};
GenerationBytes MeasureGeneration(const Outline& outline, const GenerationPass& pass);

}  // namespace tdock::trainer
