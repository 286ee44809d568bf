#include "engine/draft.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/cache/paged_cache.h"
#include "engine/model_pass.h"
#include "engine/scheduler.h"
#include "kernels/parallel.h"

namespace tdock::engine {
namespace {

// A guess that is less likely than this is the last one: those behind it would seldom count.
const float kLeastLogProb = std::log(0.4F);

std::unique_ptr<model::KvCache> MakeCache(const model::Decoder& decoder, int64_t bytes) {
  const auto values = at::TensorOptions(decoder.device()).dtype(decoder.compute_type());
  return std::make_unique<PagedCache>(decoder.config(), values,
                                      bytes / PagedCache::PageBytes(decoder.config(), decoder.compute_type()));
}

}  // namespace

Draft::Draft(const EngineOptions& options, const model::Decoder& decoder, int64_t cache_bytes, Workers& workers)
    : options_(options), workers_(workers), decoder_(decoder), cache_(MakeCache(decoder, cache_bytes)) {}

Draft::~Draft() = default;

Sequence& Draft::Follow(const Sequence& sequence) {
  std::unique_ptr<Sequence>& own = followed_[sequence.arrival];
  if (own == nullptr) {
    own = std::make_unique<Sequence>();
    own->cache = cache_->Add();
    own->stream = sequence.stream;
    own->cached = cache_->Share(own->cache, std::span(sequence.tokens).first(sequence.tokens.size() - 1));
  } else {
    // Guesses that were not chosen are forgotten.
    const auto differs =
        std::mismatch(own->tokens.begin(), own->tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    own->cached = std::min<int64_t>(own->cached, differs.first - own->tokens.begin());
    cache_->Publish(own->cache, std::span(sequence.tokens).first(static_cast<size_t>(own->cached)));
  }
  own->state = Sequence::State::kRuns;
  own->request = sequence.request;
  own->tokens = sequence.tokens;
  own->completion.tokens = sequence.completion.tokens;
  return *own;
}

bool Draft::ForgetAnIdleOne() {
  const auto idle = std::find_if(followed_.begin(), followed_.end(),
                                 [](const auto& one) { return one.second->state != Sequence::State::kRuns; });
  if (idle == followed_.end()) return false;
  cache_->Remove(idle->second->cache);
  followed_.erase(idle);
  return true;
}

bool Draft::Reserve(const Sequence& own, int64_t length) {
  while (!cache_->Reserve(own.cache, length)) {
    if (!ForgetAnIdleOne()) return false;
  }
  return true;
}

void Draft::Guess(std::span<const Asked> asked) {
  std::vector<Guesser> guessers;
  for (const Asked& one : asked) {
    if (one.sequence->size() + one.most > decoder_.config().context_length()) continue;
    guessers.push_back({&one, &Follow(*one.sequence)});
  }
  while (std::cmp_greater(followed_.size(), options_.speculative_tokens) && ForgetAnIdleOne()) {
  }
  const auto guess_all = [&] {
    while (!guessers.empty()) guessers = GuessOne(guessers);
  };
  if (decoder_.batch_invariant()) {
    kernels::WithTeam(workers_, guess_all);
  } else {
    guess_all();
  }
  for (const auto& [arrival, own] : followed_) own->state = Sequence::State::kWaits;
}

std::vector<Draft::Guesser> Draft::GuessOne(std::span<const Guesser> guessers) {
  std::vector<Piece> pieces;
  int64_t left = options_.max_step_tokens;
  for (const Guesser& guesser : guessers) {
    Sequence& own = *guesser.own;
    const int64_t count = std::min(own.size() - own.cached, left);
    if (count == 0 || !Reserve(own, own.cached + count)) continue;
    pieces.push_back({.sequence = &own, .count = count});
    left -= count;
  }
  if (pieces.empty()) return {};
  const PassResult result = RunPass(decoder_, *cache_, pieces);
  for (const Piece& piece : pieces) piece.sequence->cached += piece.count;
  std::vector<Guesser> go_on;
  for (const Chosen& next : result.chosen) {
    if (!std::isfinite(next.log_prob)) continue;
    const Guesser& guesser =
        *std::find_if(guessers.begin(), guessers.end(), [&](const Guesser& one) { return one.own == next.sequence; });
    next.sequence->tokens.push_back(next.token);
    next.sequence->completion.tokens.push_back(next.token);
    std::vector<int32_t>& guesses = *guesser.asked->guesses;
    guesses.push_back(next.token);
    const std::vector<int32_t>& ends = options_.end_tokens;
    const bool is_end = std::find(ends.begin(), ends.end(), next.token) != ends.end();
    const bool is_last = is_end || std::ssize(guesses) >= guesser.asked->most || next.log_prob < kLeastLogProb;
    if (!is_last) go_on.push_back(guesser);
  }
  return go_on;
}

}  // namespace tdock::engine
