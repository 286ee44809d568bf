#include "trainer/stages/rollout_responses.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "model/files/flops.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {
namespace {

// Adds what the row has already.
absl::Status GoOn(const Rows& rows, size_t row, const RolloutQuestions& questions, engine::Request& request) {
  request.token_budget = questions.token_budget;
  TDOCK_ASSIGN_OR_RETURN(const size_t column, rows.FindColumn(kResponses));
  if (!rows.Has(row, column)) return absl::OkStatus();
  engine::Completion& so_far = request.so_far.emplace_back();
  TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, rows.Get<int32_t>(row, kResponses));
  TDOCK_ASSIGN_OR_RETURN(const std::span<const float> log_probs, rows.Get<float>(row, questions.log_probs));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, rows.Pieces(row, kResponses));
  so_far.tokens.assign(tokens.begin(), tokens.end());
  so_far.log_probs.assign(log_probs.begin(), log_probs.end());
  so_far.finish_reason = engine::FinishReason::kBudget;
  int64_t begin = 0;
  for (const Piece& piece : pieces) {
    so_far.weights.push_back({piece.weights_version, piece.end - begin});
    begin = piece.end;
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::Request> RequestFor(const Rows& rows, size_t row, std::span<const int32_t> prompt,
                                           uint64_t number, const RolloutQuestions& questions) {
  const bool partial = questions.token_budget > 0;
  uint64_t group = DeriveSeed(rows.groups()[row], rows.epoch(row));
  if (partial) group = DeriveSeed(group, rows.ids()[row]);
  engine::Request request;
  request.prompt = {.tokens = {prompt.begin(), prompt.end()}, .samples = 1, .identity = DeriveSeed(group, number)};
  request.sampling = questions.sampling;
  const absl::StatusOr<int64_t> room = questions.limits.MaxNewTokens(
      questions.sampling.max_new_tokens, static_cast<int64_t>(prompt.size()), questions.context_length);
  if (!room.ok()) return Annotate(room.status(), absl::StrCat("row ", rows.ids()[row]));
  request.sampling.max_new_tokens = *room;
  request.sampling.min_new_tokens = std::min(questions.sampling.min_new_tokens, *room);
  if (partial) TDOCK_RETURN_IF_ERROR(GoOn(rows, row, questions, request));
  return request;
}

}  // namespace

absl::StatusOr<std::vector<engine::Request>> RolloutResponses::Ask(const Rows& asked,
                                                                   const RolloutQuestions& questions) {
  std::vector<engine::Request> requests;
  completions.resize(asked.size());
  uint64_t number = 0;  // in the group
  for (size_t i = 0; i < asked.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(const std::span<const int32_t> tokens, asked.Get<int32_t>(i, kPrompt));
    // Of partial rollouts, each row is by itself.
    const bool same_group = questions.token_budget == 0 && i > 0 && asked.groups()[i] == asked.groups()[i - 1];
    number = same_group ? number + 1 : 0;
    if (!same_group) {
      missing.push_back(0);
      is_too_short.push_back(false);
      groups.push_back(asked.groups()[i]);
    }
    ++missing.back();
    group_of_row.push_back(missing.size() - 1);
    const bool same_prompt = same_group && std::ranges::equal(tokens, requests.back().prompt.tokens);
    if (same_prompt) {
      ++requests.back().prompt.samples;
    } else {
      TDOCK_ASSIGN_OR_RETURN(requests.emplace_back(), RequestFor(asked, i, tokens, number, questions));
      rows.emplace_back();
    }
    so_far.push_back(requests.back().so_far.empty() ? 0 : requests.back().so_far.front().tokens.size());
    rows.back().push_back(i);
    prompt_lengths.push_back(static_cast<int64_t>(tokens.size()));
    reads_prompt.push_back(!same_prompt);
    max_new_tokens.push_back(requests.back().sampling.max_new_tokens);
  }
  return requests;
}

absl::Status RolloutResponses::Take(size_t request, engine::Answer& answer, int64_t min_tokens) {
  if (!answer.status.ok()) return Annotate(answer.status, absl::StrCat("prompt ", request));
  const size_t row = rows[request][static_cast<size_t>(answer.sample)];
  completions[row] = std::move(answer.completion);
  if (completions[row].finish_reason == engine::FinishReason::kBudget) {
    unfinished.push_back(row);
    return absl::OkStatus();
  }
  const size_t group = group_of_row[row];
  if (std::cmp_less(completions[row].tokens.size(), min_tokens)) is_too_short[group] = true;
  if (--missing[group] == 0) (is_too_short[group] ? too_short : ready).push_back(group);
  return absl::OkStatus();
}

int64_t RolloutResponses::VersionOf(size_t row) const {
  int64_t version = completions[row].weights.empty() ? 0 : completions[row].weights.back().version;
  size_t end = 0;
  for (const engine::WeightsSpan& span : completions[row].weights) {
    end += static_cast<size_t>(span.tokens);
    if (end > so_far[row]) version = std::min(version, span.version);
  }
  return version;
}

int64_t RolloutResponses::VersionOfGroup(size_t group) const {
  int64_t version = std::numeric_limits<int64_t>::max();
  for (size_t row = 0; row < group_of_row.size(); ++row) {
    if (group_of_row[row] == group) version = std::min(version, VersionOf(row));
  }
  return version;
}

std::vector<size_t> RolloutResponses::RowsOf(const std::vector<size_t>& some) const {
  std::vector<bool> is_one(missing.size(), false);
  for (const size_t group : some) is_one[group] = true;
  std::vector<size_t> found;
  for (size_t row = 0; row < group_of_row.size(); ++row) {
    if (is_one[group_of_row[row]]) found.push_back(row);
  }
  return found;
}

absl::StatusOr<Batch> RolloutResponses::ColumnsOf(const std::vector<size_t>& some, const text::Tokenizer& tokenizer,
                                                  const std::vector<std::string>& log_probs,
                                                  StepMetrics& metrics) const {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<std::string> texts;
  std::vector<std::vector<float>> sampled;
  std::vector<uint8_t> finished;
  std::vector<float> lengths;
  for (const size_t row : some) {
    const engine::Completion& completion = completions[row];
    tokens.push_back(completion.tokens);
    masks.emplace_back(completion.tokens.size(), uint8_t{1});
    TDOCK_ASSIGN_OR_RETURN(texts.emplace_back(), ResponseText(tokenizer, completion.tokens, completion.finished));
    sampled.push_back(completion.log_probs);
    finished.push_back(completion.finished ? 1 : 0);
    lengths.push_back(static_cast<float>(completion.tokens.size()));
    const bool clipped = std::cmp_equal(completion.tokens.size(), max_new_tokens[row]);
    metrics.Mean("response_length/clip_ratio", clipped ? 1.0 : 0.0);
    metrics.Mean("response_length/finished", completion.finished ? 1.0 : 0.0);
    metrics.Mean("response_length/empty", absl::StripAsciiWhitespace(texts.back()).empty() ? 1.0 : 0.0);
  }
  metrics.Distribution("response_length", lengths);
  Batch columns;
  TDOCK_RETURN_IF_ERROR(columns.Add(kResponses, Column::FromRows(tokens)));
  TDOCK_RETURN_IF_ERROR(columns.Add(kResponseMask, Column::FromRows(masks)));
  TDOCK_RETURN_IF_ERROR(columns.Add(kResponseText, Column::FromStrings(texts)));
  TDOCK_RETURN_IF_ERROR(columns.Add(kFinished, Column::FromValues(finished)));
  for (const std::string& name : log_probs) {
    TDOCK_RETURN_IF_ERROR(columns.Add(name, Column::FromRows(sampled)));
  }
  return columns;
}

void RolloutResponses::ReportWork(const std::vector<size_t>& some, const model::ModelConfig& config, bool partial,
                                  StepMetrics& metrics) const {
  double flops = 0;
  int64_t generated = 0;
  for (const size_t row : some) {
    const int64_t length = prompt_lengths[row];
    const auto all = static_cast<int64_t>(completions[row].tokens.size());
    const double once = model::ForwardFlops(config, length);
    flops += model::ForwardFlops(config, length + all) - once + (reads_prompt[row] ? once : 0);
    generated += all - static_cast<int64_t>(so_far[row]);
  }
  if (partial) {
    const auto continued = std::count_if(some.begin(), some.end(), [&](size_t row) { return so_far[row] > 0; });
    metrics.Sum("rollout/continued", static_cast<double>(continued));
  }
  metrics.Sum("perf/flops/rollout", flops);
  metrics.Sum("perf/num_generated_tokens", static_cast<double>(generated));
}

}  // namespace tdock::trainer
