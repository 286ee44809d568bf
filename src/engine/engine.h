// The rollout engine: answers prompts with a decoder, many at a time.
//
// Requests are added, stepped and aborted while others run. Each step passes one token of every answer in progress, and
// pieces of prompts that are not read yet, through the model together; answers that end leave, and others take their
// place (continuous batching; Yu et al. 2022, Orca). Keys and values are in pages of a cache with a budget of bytes;
// prompts that begin alike share pages (Kwon et al. 2023, arXiv:2309.06180).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/workers.h"
#include "engine/completion.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_constraint.h"
#include "model/decoder/decoder.h"
#include "text/tokenizer.h"

namespace tdock::engine {

struct Prompt {
  std::vector<int32_t> tokens;
  int64_t samples = 1;  // the number of completions
  // What the random numbers of its completions follow from, beside the seed; absent: its number in the call of
  // Generate(), or the number of the request.
  std::optional<uint64_t> identity = std::nullopt;
};

struct Request {
  Prompt prompt = {};
  SamplingParams sampling = {};
  int64_t priority = 0;                          // requests with a higher one go first, of equal ones the earlier
  absl::Time deadline = absl::InfiniteFuture();  // of Engine's clock: then its answers end as they are
  // Partial rollouts: after so many new tokens an answer ends with kBudget; 0: no limit. To go on, ask again with what
  // came back in `so_far`: with the same weights, the answers are as if they had not been interrupted. The prompt needs
  // an identity, the same each time.
  int64_t token_budget = 0;
  // What each of the prompt's samples has already, in their order; empty: nothing. Those that ended with kEndToken or
  // kStop, or have no room for more tokens, come back unchanged.
  std::vector<Completion> so_far = {};
  // Asks for the log-probabilities of the prompt's tokens (Completion::prompt_log_probs), with so many of the most
  // likely tokens beside each; absent: none. The prompt is then read from its beginning, whatever the cache has of it.
  // max_new_tokens may be 0: the answers end, with kLength and no token, when the prompt has been read.
  std::optional<int64_t> prompt_log_probs = std::nullopt;
  // Called by Step() once, before on_token, with what prompt_log_probs asks for. May do what on_token may.
  std::function<void(const PromptLogProbs& prompt)> on_prompt = {};
  // Makes what limits the tokens of a sample, as a grammar does. Empty: all tokens are allowed.
  std::function<std::unique_ptr<TokenConstraint>(int64_t sample)> constrain = {};
  // Called by Step() with each token as soon as it is there, in the order of an answer's tokens. May call Add(),
  // Abort(), IsOpen(), HasWork() and stats() of the engine, and nothing else of it.
  std::function<void(int64_t sample, const NewToken& token)> on_token = {};
};

using RequestId = uint64_t;

// An answer that has ended.
struct Answer {
  RequestId request = 0;
  int64_t sample = 0;  // its number among the prompt's
  // Internal where the model's logits, or what bias and penalties make of them, are not finite.
  absl::Status status = absl::OkStatus();
  Completion completion = {};
  int64_t version = 0;  // of the weights that were served when it ended, by Step()
};

struct EngineOptions {
  std::vector<int32_t> end_tokens = {};  // any of them ends a completion
  // The number of completions that are worked on at the same time.
  int64_t max_rows = 4096;
  // On the CPU, rows that pass through the model together: a step with more has several passes.
  static constexpr int64_t kMostRows = 128;
  Workers* workers = nullptr;                  // divide the work of a step; null: the calling thread does everything
  const text::Tokenizer* tokenizer = nullptr;  // reads answers for SamplingParams::stop, which need one
  // Of keys and values, never exceeded: answers that do not fit wait, or are sent back and computed again later.
  // 0: what max_rows answers need, at most half of the memory that is free, or 64 MiB.
  int64_t cache_bytes = 0;
  // The most tokens of a step; prompts are read in pieces that fit. At least 1.
  int64_t max_step_tokens = 2048;
  // Maximum number of tokens of a step that are guesses: what followed the last tokens of an answer where these stood
  // before, in its prompt or in itself, or what the draft says. They pass through the model with those tokens, and each
  // that is the token which is then chosen saves a step. So the answers are those without guesses, bit for bit in
  // batch-invariant mode. A step has no guesses if it has more than so many other tokens, an answer none if its tokens
  // have penalties or a constraint. 0: no step has any.
  int64_t speculative_tokens = 0;
  // A model of the same tokens which guesses where nothing stood before; null: none. Only its speed matters, and how
  // often it chooses what the large one chooses. It is a small one, or the same again: in batch-invariant mode its
  // weights are rounded to int8, unless it is packed. They are those of the first step. Its keys and values take a
  // quarter of cache_bytes more at most. It must outlive the engine.
  const model::Decoder* draft = nullptr;
  // New requests wait until all answers in progress have ended: static batching, to compare with.
  bool one_batch_at_a_time = false;
  // In batch-invariant mode, weights and what they multiply are rounded to int8 (kernels::PackedFormat). Products are
  // faster, and log-probabilities differ a little from those of the model as it is.
  bool int8_weights = false;
  // Each sequence has its own tensors, nothing is shared: slow, to compare with.
  bool dense_cache = false;
  Clock* clock = nullptr;  // for deadlines and EngineStats::computing; null: Clock::Real()
};

// How many bytes of keys and values an engine takes at most for `rows` answers at the same time, which are `longest`
// tokens long with their prompts.
int64_t CacheBytesFor(const EngineOptions& options, const model::Decoder& decoder, int64_t rows, int64_t longest);

// What an engine has done since it was made, and what it holds now.
struct EngineStats {
  int64_t steps = 0;
  int64_t computed_tokens = 0;                      // that passed through the model
  int64_t shared_tokens = 0;                        // of prompts, that did not have to, because others began alike
  int64_t preemptions = 0;                          // answers that were sent back because the cache was full
  int64_t guessed_tokens = 0;                       // of EngineOptions::speculative_tokens
  int64_t right_guesses = 0;                        // that were the tokens which were chosen
  absl::Duration computing = absl::ZeroDuration();  // what passes took, from tokens to the next ones, of its clock
  int64_t running = 0, waiting = 0;                 // answers
  model::CacheUse cache = {};
  // Places for tokens in pages of answers in progress that no token has yet: what the cache wastes.
  int64_t unused_places = 0;
};

// Weights as the engine serves them.
struct ServedWeights {
  int64_t version = 0;
  uint64_t hash = 0;  // of all weights and adapters, as they are used
};

// What becomes of answers in progress when the weights change.
enum class InProgress {
  // What they have so far is read again, with the new weights, in pieces as EngineOptions::max_step_tokens says.
  kReadAgain,
  // They go on at once from the keys and values that they have, which the weights before made. Nobody else shares
  // those.
  kGoOn,
};

// Thread-safe. Step(), AnswerAll() and whatever reads or changes weights wait for one another; Add(), Abort(),
// IsOpen(), HasWork() and stats() do not wait.
class Engine {
 public:
  // Serves the decoder's weights as version 0. It must outlive the engine, or until other weights are served. In
  // batch-invariant mode, steps use copies of the weights, which take as much memory in the dtype of the activations:
  // those of Decoder::PackWeights() if the decoder has them, which engines then share, or else the engine's own.
  Engine(const model::Decoder& decoder, EngineOptions options);
  ~Engine();

  // The completions of prompt 0, then those of prompt 1, and so on. The random numbers of a completion depend only on
  // the seed, the prompt's identity, its number among the prompt's and the position. The same call gives the same
  // result whatever the number of threads; another set of prompts or other options may change the last bits of the
  // logits, unless the decoder is batch-invariant. A completion also ends where the model has no more positions.
  //
  // Uses the decoder's weights as they are at the call. InvalidArgument names a prompt that is empty, has a token
  // outside of the vocabulary, or leaves no room for an answer, a parameter (CheckSamplingParams()), or a cache_bytes
  // too small for one answer; FailedPrecondition if requests are open; Internal names a prompt whose logits are not
  // finite. Throws c10::Error if libtorch does.
  absl::StatusOr<std::vector<Completion>> Generate(std::span<const Prompt> prompts, const SamplingParams& params);

  // The same for requests of any kind: calls `after_step` after each step, with the answers that have ended, in which
  // `request` is the number in `requests`, until all have, or it returns an error, which AnswerAll() then returns.
  // Requests that are added meanwhile are answered by later steps. What on_token may do, `after_step` may do as well.
  using AfterStep = std::function<absl::Status(std::span<Answer> ended)>;
  absl::Status AnswerAll(std::vector<Request> requests, const AfterStep& after_step);

  // The same errors as Generate(), and InvalidArgument for a token_budget below 0, a so_far of another size, and
  // prompt_log_probs below 0, beyond the vocabulary, or of a token that has no probability.
  absl::StatusOr<RequestId> Add(Request request);

  // Ends the answers of a request as they are: the next Step() gives them, with kAborted. NotFound if it is not open.
  absl::Status Abort(RequestId request);

  // Whether Step() will give answers of the request.
  bool IsOpen(RequestId request) const;

  // Whether there is anything to do.
  bool HasWork() const;

  // One pass for all answers in progress; gives those that have ended. Throws c10::Error if libtorch does; then the
  // requests that were in progress are lost.
  std::vector<Answer> Step();

  // From the next step on, serves other weights, also for answers in progress. The decoder must have the shapes of the
  // one before, which it gives back, if Serve() has brought it: freeing it may take a while. With a decoder that is
  // packed and kGoOn, this takes no longer than the step that runs.
  std::shared_ptr<const model::Decoder> Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version,
                                              InProgress in_progress = InProgress::kReadAgain);
  // The same, where only the adapters have changed: names and shapes as in Decoder::NamedAdapters(). InvalidArgument
  // names one that does not fit.
  absl::Status ServeAdapters(const model::NamedTensors& adapters, int64_t version);
  // The same for weights that are shared with a trainer: calls `write`, which may change them, while no step reads. Not
  // those of a decoder that is packed (Decoder::PackWeights()): its packed copies would stay as they are.
  void Update(const std::function<void()>& write, int64_t version);

  // Reads all weights once for each version.
  ServedWeights weights();

  EngineStats stats() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tdock::engine
