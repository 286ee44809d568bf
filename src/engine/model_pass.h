// One pass of some sequences through the model, and the tokens that follow. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampling/sampler.h"
#include "engine/scheduler.h"
#include "model/decoder/decoder.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// The next token of a sequence. log_prob is not finite where the logits are not.
struct Chosen {
  Sequence* sequence = nullptr;
  int64_t ahead = 0;                  // number of guesses before it, which are right or it does not count
  std::optional<int32_t> guess = {};  // of it; the tokens chosen after it count if it is right
  int32_t token = 0;
  float log_prob = 0;
  std::vector<TokenLogProb> top = {};
};

// Tokens that a pass adds to OpenRequest::scored.
struct ScoredPrompt {
  OpenRequest* request = nullptr;
  std::vector<ScoredToken> tokens = {};
};

struct PassResult {
  std::vector<Chosen> chosen = {};
  // One for each piece of a prompt that is being scored, also if it adds nothing.
  std::vector<ScoredPrompt> scored = {};
};

// Puts the pieces' tokens and guesses into the cache, and chooses a token for each sequence that is then read to its
// end, and for those that follow it; after each guess another one, in their order. Changes no sequence and no request.
// The pieces have the same OpenRequest::rope_length if the model's positions depend on it. Passes over different
// sequences may run at the same time.
PassResult RunPass(const model::Decoder& decoder, model::KvCache& cache, std::span<const Piece> pieces);

// Divides the pieces of a step into passes. On the CPU, for a decoder that is not batch-invariant, at least two where
// there are two pieces, for two threads, whatever the number of threads is: what passes through the model together may
// change the last bits of the results.
std::vector<std::span<const Piece>> CutPasses(std::span<Piece> pieces, const model::Decoder& decoder);

}  // namespace tdock::engine
