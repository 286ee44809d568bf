// Shapes: R rows, V vocabulary.
#include "engine/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "engine/answer_end.h"

namespace tdock::engine {
namespace {

// The completions of some prompts, all worked on at the same time.
class Rollout {
 public:
  Rollout(const model::Decoder& decoder, const Sampler& sampler, const AnswerEnds& ends, const SamplingParams& params,
          std::span<const Prompt> prompts, size_t first_prompt, std::span<Completion> completions)
      : decoder_(decoder),
        sampler_(sampler),
        ends_(ends),
        params_(params),
        prompts_(prompts),
        first_prompt_(first_prompt),
        completions_(completions),
        cache_(decoder.config(), static_cast<int64_t>(prompts.size()), Slots(decoder, prompts, params),
               at::TensorOptions(decoder.device()).dtype(decoder.compute_type())) {}

  absl::Status Run() {
    at::Tensor logits_RV = ReadPrompts();
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, Sample(logits_RV));
      if (std::none_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.open; })) return absl::OkStatus();
      logits_RV = Step(DropClosedRows(tokens));
    }
  }

 private:
  struct Row {
    size_t prompt;
    size_t completion;
    uint64_t stream;   // of random numbers
    int64_t position;  // of the token that is sampled next
    std::unique_ptr<StopTextReader> stop_texts;
    TokenCounts counts = {};  // where the sampler needs them
    bool open = true;
  };

  static int64_t Longest(std::span<const Prompt> prompts) {
    size_t longest = 0;
    for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
    return static_cast<int64_t>(longest);
  }

  static int64_t Slots(const model::Decoder& decoder, std::span<const Prompt> prompts, const SamplingParams& params) {
    return Longest(prompts) + std::min(params.max_new_tokens, decoder.config().context_length() - Longest(prompts));
  }

  at::Tensor OnDevice(const std::vector<int64_t>& values) const {
    return at::tensor(values, at::kLong).to(decoder_.device());
  }

  // Runs each prompt once, then copies its cache for each of its samples. Gives the logits of the first new token.
  at::Tensor ReadPrompts() {
    const int64_t count = static_cast<int64_t>(prompts_.size());
    const int64_t width = Longest(prompts_);
    at::Tensor tokens = at::zeros({count, width}, at::kLong);
    std::vector<int64_t> last, repeated;
    for (int64_t p = 0; p < count; ++p) {
      const Prompt& prompt = prompts_[static_cast<size_t>(p)];
      std::copy(prompt.tokens.begin(), prompt.tokens.end(), tokens.mutable_data_ptr<int64_t>() + p * width);
      last.push_back(p * width + static_cast<int64_t>(prompt.tokens.size()) - 1);
      const uint64_t seed =
          DeriveSeed(params_.seed, prompt.identity.value_or(first_prompt_ + static_cast<uint64_t>(p)));
      for (int64_t s = 0; s < prompt.samples; ++s) {
        rows_.push_back({static_cast<size_t>(p), rows_.size(), DeriveSeed(seed, static_cast<uint64_t>(s)),
                         static_cast<int64_t>(prompt.tokens.size()), ends_.MakeReader()});
        if (sampler_.needs_counts()) rows_.back().counts = TokenCounts(prompt.tokens);
        repeated.push_back(p);
      }
    }
    const at::Tensor positions = at::arange(width, at::kLong).expand({count, width});
    cache_.SetLength(width);
    const at::Tensor hidden =
        decoder_.Hidden({tokens.to(decoder_.device()), positions.to(decoder_.device()), {}}, &cache_);
    const at::Tensor index = OnDevice(repeated);
    cache_.SelectRows(index);
    return decoder_.Logits(hidden.flatten(0, 1).index_select(0, OnDevice(last))).index_select(0, index);
  }

  // Chooses the next token of every row, records it for those that are open, and closes rows that end with it.
  absl::StatusOr<std::vector<int64_t>> Sample(const at::Tensor& logits_RV) {
    std::vector<Sampler::Row> sampled;
    sampled.reserve(rows_.size());
    for (const Row& row : rows_) {
      sampled.push_back({UnitInterval(DeriveSeed(row.stream, static_cast<uint64_t>(row.position))),
                         static_cast<int64_t>(completions_[row.completion].tokens.size()), &row.counts});
    }
    Choices choices = sampler_.Choose(logits_RV, sampled);
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r].open) continue;
      if (!std::isfinite(choices.log_probs[r])) return NotFinite(rows_[r]);
      Completion& completion = completions_[rows_[r].completion];
      completion.log_probs.push_back(choices.log_probs[r]);
      if (!choices.top.empty()) completion.top.push_back(std::move(choices.top[r]));
      TDOCK_RETURN_IF_ERROR(Append(rows_[r], static_cast<int32_t>(choices.tokens[r]), completion));
    }
    return std::move(choices.tokens);
  }

  absl::Status NotFinite(const Row& row) const {
    return absl::InternalError(absl::StrCat("prompt ", first_prompt_ + row.prompt, ": the logits of position ",
                                            row.position, sampler_.changes_logits() ? ", after bias and penalties" : "",
                                            ", divided by the temperature, are not finite"));
  }

  absl::Status Append(Row& row, int32_t token, Completion& completion) {
    completion.tokens.push_back(token);
    if (sampler_.needs_counts()) row.counts.AddToAnswer(token);
    const bool full = static_cast<int64_t>(completion.tokens.size()) == params_.max_new_tokens ||
                      row.position + 1 == decoder_.config().context_length();
    const absl::Status status = ends_.Update(completion, full, row.stop_texts.get());
    if (!status.ok()) return Annotate(status, absl::StrCat("prompt ", first_prompt_ + row.prompt));
    row.open = !completion.finished && !full;
    return absl::OkStatus();
  }

  // Copying the cache costs about a step, so closed rows are carried along until they are a quarter.
  std::vector<int64_t> DropClosedRows(const std::vector<int64_t>& tokens) {
    const auto open =
        static_cast<size_t>(std::count_if(rows_.begin(), rows_.end(), [](const Row& r) { return r.open; }));
    if (4 * open > 3 * rows_.size()) return tokens;
    std::vector<Row> kept_rows;
    std::vector<int64_t> kept, kept_tokens;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r].open) continue;
      kept.push_back(static_cast<int64_t>(r));
      kept_rows.push_back(std::move(rows_[r]));
      kept_tokens.push_back(tokens[r]);
    }
    cache_.SelectRows(OnDevice(kept));
    rows_ = std::move(kept_rows);
    return kept_tokens;
  }

  // Feeds one token to every row; gives the logits of the next.
  at::Tensor Step(const std::vector<int64_t>& tokens) {
    std::vector<int64_t> positions;
    int64_t longest = 0;
    for (Row& row : rows_) {
      positions.push_back(row.position);
      longest = std::max(longest, row.position + 1);
      // A closed row stays where it is: it writes over its own last slot, which nobody reads.
      if (row.open) ++row.position;
    }
    cache_.SetLength(longest);
    const at::Tensor hidden =
        decoder_.Hidden({OnDevice(tokens).unsqueeze(1), OnDevice(positions).unsqueeze(1), {}}, &cache_);
    return decoder_.Logits(hidden.squeeze(1));
  }

  const model::Decoder& decoder_;
  const Sampler& sampler_;
  const AnswerEnds& ends_;
  const SamplingParams& params_;
  const std::span<const Prompt> prompts_;
  const size_t first_prompt_;
  const std::span<Completion> completions_;
  model::KvCache cache_;
  std::vector<Row> rows_;
};

absl::Status CheckPrompts(std::span<const Prompt> prompts, const model::ModelConfig& config) {
  for (size_t p = 0; p < prompts.size(); ++p) {
    const Prompt& prompt = prompts[p];
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", p, " ", why));
    };
    if (prompt.tokens.empty()) return refuse("is empty; it needs at least one token");
    if (prompt.samples < 1) return refuse(absl::StrCat("asks for ", prompt.samples, " samples; at least 1 is needed"));
    if (static_cast<int64_t>(prompt.tokens.size()) >= config.context_length()) {
      return refuse(absl::StrCat("has ", prompt.tokens.size(), " tokens, which leaves no room for an answer in the ",
                                 config.context_length(), " positions of the model"));
    }
    for (int32_t token : prompt.tokens) {
      if (token < 0 || token >= config.vocab_size) {
        return refuse(absl::StrCat("has token ", token, ", outside of the vocabulary of ", config.vocab_size));
      }
    }
  }
  return absl::OkStatus();
}

// Prompts that one thread works on at the same time.
struct Share {
  std::span<const Prompt> prompts;
  size_t first_prompt;
  size_t first_completion;
  size_t completions;
};

// On the CPU at least two shares, for two threads, whatever the number of threads is: the rows of a share pass through
// the model together, and their number may change the last bits of what comes out.
std::vector<Share> ShareOut(std::span<const Prompt> prompts, const model::Decoder& decoder,
                            const EngineOptions& options) {
  int64_t total = 0;
  for (const Prompt& prompt : prompts) total += prompt.samples;
  int64_t limit = options.max_rows;
  if (decoder.device().is_cpu()) limit = std::min({limit, EngineOptions::kMostRows, (total + 1) / 2});
  std::vector<Share> shares;
  size_t first_completion = 0;
  for (size_t begin = 0; begin < prompts.size();) {
    size_t end = begin;
    int64_t rows = 0;
    do {
      rows += prompts[end++].samples;
    } while (end < prompts.size() && rows + prompts[end].samples <= limit);
    shares.push_back({prompts.subspan(begin, end - begin), begin, first_completion, static_cast<size_t>(rows)});
    first_completion += static_cast<size_t>(rows);
    begin = end;
  }
  return shares;
}

}  // namespace

absl::StatusOr<std::string> TextOf(const Completion& completion, const text::Tokenizer& tokenizer) {
  TDOCK_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(completion.tokens));
  if (completion.text_bytes) text.resize(std::min(text.size(), *completion.text_bytes));
  return text;
}

absl::StatusOr<std::vector<Completion>> Engine::Generate(std::span<const Prompt> prompts,
                                                         const SamplingParams& params) const {
  TDOCK_RETURN_IF_ERROR(CheckPrompts(prompts, decoder_.config()));
  const int64_t vocab_size = decoder_.used_tokens();
  TDOCK_RETURN_IF_ERROR(CheckSamplingParams(params, vocab_size, options_.end_tokens));
  if (!params.stop.empty() && options_.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "stop needs an engine with a tokenizer (EngineOptions::tokenizer), to read answers");
  }
  const Sampler sampler(params, options_.end_tokens, vocab_size, decoder_.device(), decoder_.batch_invariant());
  const AnswerEnds ends(params, options_.end_tokens, options_.tokenizer);
  const std::vector<Share> shares = ShareOut(prompts, decoder_, options_);
  std::vector<Completion> completions(shares.empty() ? 0 : shares.back().first_completion + shares.back().completions);
  std::vector<absl::Status> results(shares.size());
  const auto run = [&](int i) {
    at::NoGradGuard no_grad;
    const Share& share = shares[static_cast<size_t>(i)];
    Rollout rollout(decoder_, sampler, ends, params, share.prompts, share.first_prompt,
                    std::span(completions).subspan(share.first_completion, share.completions));
    results[static_cast<size_t>(i)] = rollout.Run();
  };
  Workers alone(1);
  (options_.workers ? *options_.workers : alone).Run(static_cast<int>(shares.size()), run);
  for (const absl::Status& result : results) TDOCK_RETURN_IF_ERROR(result);
  return completions;
}

}  // namespace tdock::engine
