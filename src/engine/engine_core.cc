#include "engine/engine_core.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/process_memory.h"
#include "core/base/status.h"
#include "engine/cache/paged_cache.h"
#include "kernels/parallel.h"
#include "model/decoder/dense_cache.h"

namespace tdock::engine {
namespace {

// What systems say is free can be next to nothing for a moment.
constexpr int64_t kLeastCacheBytes = int64_t{64} << 20;

// Of the CPU what this process may still take, of a GPU what its memory has free.
int64_t FreeBytes(const at::Device& device) {
  if (!device.is_cpu()) {
    const c10::DeviceIndex index = std::max<c10::DeviceIndex>(device.index(), 0);
    auto* const allocator = at::getDeviceAllocator(device.type());
    // Libtorch keeps memory that tensors have given back.
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto& stats = allocator->getDeviceStats(index);
    return static_cast<int64_t>(allocator->getMemoryInfo(index).first) + stats.reserved_bytes[kAll].current -
           stats.allocated_bytes[kAll].current;
  }
  Env& env = Env::Real();
  const int64_t resident = ResidentMemory(env).value_or(0);
  const std::optional<int64_t> available = AvailableMemory(env, resident);
  return available ? std::max<int64_t>(*available - resident, 0) : std::numeric_limits<int64_t>::max();
}

int64_t PagesFor(int64_t tokens) { return (tokens + PagedCache::kPageTokens - 1) / PagedCache::kPageTokens; }

int64_t PageBytes(const model::Decoder& decoder) {
  return PagedCache::PageBytes(decoder.config(), decoder.compute_type());
}

bool IsDynamic(const model::ModelConfig& config) { return config.rope.type == model::RopeType::kDynamic; }

absl::Status NotFinite(const Sequence& sequence) {
  if (sequence.constraint != nullptr) {
    const std::span<const uint64_t> allowed = sequence.constraint->Allowed();
    if (std::all_of(allowed.begin(), allowed.end(), [](uint64_t word) { return word == 0; })) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the answer's grammar allows no token at position ", sequence.size(),
                       ": its states there are too many to find, or the vocabulary spells no text that it takes"));
    }
    return absl::InternalError(absl::StrCat("the logits of position ", sequence.size(),
                                            " are not finite for any token that the answer's grammar allows"));
  }
  const bool changed = sequence.request->choosing->sampler.changes_logits();
  return absl::InternalError(absl::StrCat("the logits of position ", sequence.size(),
                                          changed ? ", after bias and penalties" : "",
                                          ", divided by the temperature, are not finite"));
}

absl::Status TooLong(const model::KvCache& cache) {
  return absl::ResourceExhaustedError(absl::StrCat("the answer does not fit into the cache of ",
                                                   cache.use().budget_bytes,
                                                   " bytes with its prompt; that is half of what was free, unless "
                                                   "cache_bytes says how many it may have"));
}

void Stamp(Completion& completion, int64_t version) {
  if (completion.weights.empty() || completion.weights.back().version != version) {
    completion.weights.push_back({.version = version, .tokens = 0});
  }
  ++completion.weights.back().tokens;
}

}  // namespace

namespace {

int64_t CacheBudget(const EngineOptions& options, const at::Device& device) {
  return options.cache_bytes > 0 ? options.cache_bytes : std::max(FreeBytes(device) / 2, kLeastCacheBytes);
}

}  // namespace

int64_t CacheBytesFor(const EngineOptions& options, const model::Decoder& decoder, int64_t rows, int64_t longest) {
  const int64_t needed = std::min(rows, options.max_rows) * PagesFor(longest);
  const int64_t budget = CacheBudget(options, decoder.device());
  return std::max<int64_t>(std::min(needed, budget / PageBytes(decoder)), 1) * PageBytes(decoder);
}

absl::Status CheckCacheBytes(const EngineOptions& options, const model::Decoder& decoder, const Request& request) {
  const int64_t longest = LongestOf(request, decoder.config());
  const int64_t needed = PagesFor(longest) * PageBytes(decoder);
  if (options.cache_bytes == 0 || needed <= options.cache_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("needs ", needed, " bytes of the cache for one answer of up to ",
                                                 longest, " tokens with its prompt, more than the cache_bytes of ",
                                                 options.cache_bytes));
}

EngineCore::EngineCore(const EngineOptions& options, const model::Decoder& decoder)
    : options_(options), config_(decoder.config()) {}

void EngineCore::MakeCache(const model::Decoder& decoder) {
  const int64_t rows = expected_rows_ > 0 ? expected_rows_ : options_.max_rows;
  const int64_t longest = expected_rows_ > 0 ? expected_tokens_ : config_.context_length();
  const int64_t pages = CacheBytesFor(options_, decoder, rows, longest) / PageBytes(decoder);
  const auto values = at::TensorOptions(decoder.device()).dtype(decoder.compute_type());
  if (options_.dense_cache) {
    cache_ =
        std::make_unique<model::DenseCache>(config_, values, decoder.HasKernels(), pages * PagedCache::kPageTokens);
  } else {
    cache_ = std::make_unique<PagedCache>(config_, values, pages);
  }
  if (options_.draft != nullptr) MakeDraft();
  const SchedulerLimits limits = {.max_rows = options_.max_rows,
                                  .max_step_tokens = options_.max_step_tokens,
                                  .one_batch_at_a_time = options_.one_batch_at_a_time,
                                  .speculative_tokens = options_.speculative_tokens};
  scheduler_ = std::make_unique<Scheduler>(*cache_, limits, draft_.get());
}

// For as many sequences as a step has guesses.
void EngineCore::MakeDraft() {
  if (!packed_draft_) {
    packed_draft_ = *options_.draft;
    if (packed_draft_->batch_invariant() && !packed_draft_->is_packed()) {
      kernels::WithTeam(workers(), [&] { packed_draft_->PackWeights(/*int8=*/true); });
    }
  }
  EngineOptions own;
  own.cache_bytes = CacheBudget(options_, packed_draft_->device()) / 4;
  const int64_t rows = expected_rows_ > 0 ? expected_rows_ : options_.max_rows;
  const int64_t longest = expected_rows_ > 0 ? expected_tokens_ : packed_draft_->config().context_length();
  const int64_t bytes = CacheBytesFor(own, *packed_draft_, std::min(rows, options_.speculative_tokens), longest);
  draft_ = std::make_unique<Draft>(options_, *packed_draft_, bytes, workers());
}

void EngineCore::Add(std::unique_ptr<OpenRequest> request, std::vector<Answer>& ended) {
  OpenRequest& open = *request;
  if (!IsDynamic(config_)) open.rope_length = 0;
  MakeSequences(open, arrivals_, config_, ended);
  arrivals_ += static_cast<uint64_t>(open.request.prompt.samples);
  if (open.sequences.empty()) return;
  open.leader()->state = Sequence::State::kWaits;
  if (scheduler_ != nullptr) scheduler_->Add(*open.leader());
  requests_.emplace(open.id, std::move(request));
}

void EngineCore::End(Sequence& sequence, absl::Status status, std::vector<Answer>& ended) {
  OpenRequest& request = *sequence.request;
  if (scheduler_ != nullptr) scheduler_->Remove(sequence);
  sequence.completion.prompt_log_probs = request.prompt_log_probs;
  ended.push_back({.request = request.id,
                   .sample = sequence.sample,
                   .status = std::move(status),
                   .completion = std::move(sequence.completion)});
  std::erase_if(request.sequences, [&](const auto& other) { return other.get() == &sequence; });
  if (request.sequences.empty()) requests_.erase(request.id);
}

void EngineCore::EndAll(OpenRequest& request, FinishReason reason, std::vector<Answer>& ended) {
  for (const auto& sequence : request.sequences) sequence->completion.finish_reason = reason;
  EndAll(request, absl::OkStatus(), ended);
}

void EngineCore::EndAll(OpenRequest& request, const absl::Status& status, std::vector<Answer>& ended) {
  for (size_t left = request.sequences.size(); left > 0; --left) End(*request.sequences.front(), status, ended);
}

void EngineCore::Abort(RequestId id, std::vector<Answer>& ended) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) EndAll(*found->second, FinishReason::kAborted, ended);
}

void EngineCore::EndLate(std::vector<Answer>& ended) {
  std::vector<OpenRequest*> late;
  std::optional<absl::Time> now;
  for (const auto& [id, request] : requests_) {
    if (request->request.deadline == absl::InfiniteFuture()) continue;
    if (!now) now = clock().Now();
    if (request->request.deadline <= *now) late.push_back(request.get());
  }
  std::sort(late.begin(), late.end(), [](const OpenRequest* a, const OpenRequest* b) { return a->id < b->id; });
  for (OpenRequest* request : late) EndAll(*request, FinishReason::kDeadline, ended);
}

// Those that wait for the prompt of their request go on from the cache of the sequence that has read it.
void EngineCore::StartFollowers(Sequence& leader) {
  for (const auto& other : leader.request->sequences) {
    if (other->state != Sequence::State::kFollows) continue;
    if (leader.completion.tokens.empty() && other->completion.tokens.empty()) {  // both get their first token
      scheduler_->Fork(leader, *other);
    } else {
      scheduler_->Add(*other);
    }
  }
}

// Takes log-probabilities of prompts, before any token. Ends requests that have logits that are not finite, and those
// that want nothing else.
void EngineCore::AddScores(PassResult& result, int64_t version, std::vector<Answer>& ended, std::vector<News>& news) {
  for (ScoredPrompt& scored : result.scored) {
    OpenRequest& request = *scored.request;
    const absl::Status status = request.AddScores(std::move(scored.tokens), version);
    if (!status.ok()) {
      std::erase_if(result.chosen, [&](const Chosen& chosen) { return chosen.sequence->request == &request; });
      EndAll(request, status, ended);
      continue;
    }
    if (request.prompt_log_probs == nullptr) continue;
    if (request.request.on_prompt) {
      news.push_back([tell = request.request.on_prompt, prompt = request.prompt_log_probs] { tell(prompt); });
    }
    if (!request.wants_tokens()) EndAll(request, FinishReason::kLength, ended);
  }
}

bool EngineCore::Append(Chosen& chosen, int64_t version, std::vector<Answer>& ended, std::vector<News>& news) {
  Sequence& sequence = *chosen.sequence;
  const auto end = [&](absl::Status status) {
    End(sequence, std::move(status), ended);
    return false;
  };
  if (!std::isfinite(chosen.log_prob)) return end(NotFinite(sequence));
  OpenRequest& request = *sequence.request;
  Completion& completion = sequence.completion;
  sequence.tokens.push_back(chosen.token);
  ++sequence.new_tokens;
  completion.tokens.push_back(chosen.token);
  completion.log_probs.push_back(chosen.log_prob);
  if (request.request.on_token) {
    news.push_back([tell = request.request.on_token, sample = sequence.sample,
                    token = NewToken{chosen.token, chosen.log_prob, version, chosen.top}] { tell(sample, token); });
  }
  if (!chosen.top.empty()) completion.top.push_back(std::move(chosen.top));
  Stamp(completion, version);
  if (request.choosing->sampler.needs_counts()) sequence.counts.AddToAnswer(chosen.token);
  if (sequence.constraint != nullptr) sequence.constraint->Accept(chosen.token);
  const TokenConstraint* const constraint = sequence.constraint.get();
  if (constraint != nullptr && constraint->complete()) {  // whatever stop texts its text has
    completion.finish_reason = FinishReason::kStop;
    completion.finished = true;
    return end(absl::OkStatus());
  }
  const bool full = static_cast<int64_t>(completion.tokens.size()) >= request.choosing->params.max_new_tokens ||
                    sequence.size() >= config_.context_length();
  const bool may_end = constraint == nullptr || constraint->may_end();
  absl::Status status = request.choosing->ends.Update(completion, full, may_end, sequence.stop_texts.get());
  if (!status.ok() || completion.finished || full) return end(std::move(status));
  if (request.request.token_budget > 0 && sequence.new_tokens == request.request.token_budget) {
    completion.finish_reason = FinishReason::kBudget;
    return end(absl::OkStatus());
  }
  return true;
}

void EngineCore::AppendAll(PassResult& result, int64_t version, std::vector<Answer>& ended, std::vector<News>& news) {
  bool was_right = false;  // the guess before this token, and the answer goes on
  for (Chosen& next : result.chosen) {
    if (next.ahead > 0 && !was_right) continue;
    Sequence& sequence = *next.sequence;
    const bool goes_on = Append(next, version, ended, news);
    was_right = goes_on && next.guess == next.token;
    if (!goes_on || !next.guess) continue;
    sequence.guess_length = was_right ? sequence.guess_length + 1 : std::max<int64_t>(sequence.guess_length / 2, 1);
    if (!was_right) continue;
    ++sequence.cached;  // has passed through the model as a guess
    ++done_.right_guesses;
  }
}

const model::Decoder& EngineCore::Packed(const model::Decoder& decoder) {
  if (!decoder.batch_invariant() || decoder.is_packed()) return decoder;
  if (!packed_) {
    model::Decoder packed = decoder;
    kernels::WithTeam(workers(), [&] { packed.PackWeights(options_.int8_weights); });
    packed_ = std::move(packed);
  }
  return *packed_;
}

std::vector<PassResult> EngineCore::RunPasses(const model::Decoder& decoder, std::span<Piece> pieces) {
  const std::vector<std::span<const Piece>> passes = CutPasses(pieces, decoder);
  std::vector<PassResult> results;
  if (decoder.batch_invariant()) {  // divides its own work
    kernels::WithTeam(workers(), [&] {
      for (const std::span<const Piece> pass : passes) results.push_back(RunPass(decoder, *cache_, pass));
    });
    return results;
  }
  results.resize(passes.size());
  workers().Run(static_cast<int>(passes.size()), [&](int i) {
    results[static_cast<size_t>(i)] = RunPass(decoder, *cache_, passes[static_cast<size_t>(i)]);
  });
  return results;
}

void EngineCore::Step(const model::Decoder& decoder, int64_t version, std::vector<Answer>& ended,
                      std::vector<News>& news) {
  EndLate(ended);
  if (requests_.empty()) return;
  absl::Time begun = clock().Now();
  const model::Decoder& packed = Packed(decoder);  // before the cache, which takes a part of the memory that is free
  done_.computing += clock().Now() - begun;
  if (scheduler_ == nullptr) {
    MakeCache(decoder);
    for (const auto& [id, request] : requests_) scheduler_->Add(*request->leader());
  }
  begun = clock().Now();
  std::vector<Piece> pieces = scheduler_->Next();
  if (draft_ != nullptr) done_.computing += clock().Now() - begun;
  if (scheduler_->too_long() != nullptr) EndAll(*scheduler_->too_long()->request, TooLong(*cache_), ended);
  if (pieces.empty()) return;
  begun = clock().Now();
  std::vector<PassResult> results = RunPasses(packed, pieces);
  done_.computing += clock().Now() - begun;
  ++done_.steps;
  for (const Piece& piece : pieces) {
    done_.computed_tokens += piece.size();
    done_.guessed_tokens += std::ssize(piece.guesses);
    scheduler_->Done(piece);
  }
  for (PassResult& result : results) {
    AddScores(result, version, ended, news);
    // Followers share the cache of their leader as long as it is there: they take their places before it may end.
    for (const Chosen& next : result.chosen) {
      Sequence& sequence = *next.sequence;
      if (sequence.state == Sequence::State::kRuns && &sequence == sequence.request->leader()) {
        StartFollowers(sequence);
      }
    }
    AppendAll(result, version, ended, news);
  }
}

void EngineCore::Expect(int64_t rows, int64_t longest) {
  expected_rows_ = rows;
  expected_tokens_ = longest;
}

void EngineCore::Forget(InProgress in_progress) {
  packed_.reset();
  if (in_progress == InProgress::kReadAgain) {
    for (const auto& [id, request] : requests_) request->ForgetScores();
  }
  if (scheduler_ != nullptr) scheduler_->Forget(in_progress == InProgress::kGoOn);
}

void EngineCore::Clear(bool weights_stay) {
  if (!weights_stay) packed_.reset();
  requests_.clear();
  if (scheduler_ != nullptr) {
    done_.preemptions += scheduler_->preemptions();
    done_.shared_tokens += scheduler_->shared_tokens();
  }
  scheduler_.reset();
  draft_.reset();
  cache_.reset();
  Expect(0, 0);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = done_;
  if (scheduler_ == nullptr) return stats;
  stats.preemptions += scheduler_->preemptions();
  stats.shared_tokens += scheduler_->shared_tokens();
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.cache = cache_->use();
  if (options_.dense_cache) return stats;
  for (const Sequence* sequence : scheduler_->all_running()) {
    stats.unused_places += PagesFor(sequence->cached) * PagedCache::kPageTokens - sequence->cached;
  }
  return stats;
}

}  // namespace tdock::engine
