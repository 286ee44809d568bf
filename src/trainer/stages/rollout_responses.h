// What a rollout asks for the rows that it was given, and what has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "tdock/batch.h"
#include "tdock/rows.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {

// How rows become requests.
struct RolloutQuestions {
  engine::SamplingParams sampling = {};
  LengthLimits limits = {};
  int64_t context_length = 0;  // of the model
  int64_t token_budget = 0;    // see RolloutPuts: partial rollouts, of which each row is asked for by itself
  std::string log_probs = {};  // the column of what an answer in part has
};

struct RolloutResponses {
  std::vector<std::vector<size_t>> rows;        // of each request, one for each of its samples
  std::vector<size_t> group_of_row;             // a number
  std::vector<int64_t> missing;                 // of each group: responses that are not there yet
  std::vector<bool> is_too_short;               // of each group: whether a response is
  std::vector<int64_t> prompt_lengths;          // of each row
  std::vector<bool> reads_prompt;               // of each row: the others of its request share what it read
  std::vector<int64_t> max_new_tokens;          // of each row
  std::vector<engine::Completion> completions;  // of each row
  std::vector<GroupId> groups;                  // by their numbers
  std::vector<size_t> ready;                    // groups that are there, and not put
  std::vector<size_t> too_short;                // groups that are there, with an answer that is too short
  std::vector<size_t> unfinished;               // rows whose answers are to be gone on with
  std::vector<size_t> so_far;                   // of each row: the tokens that it had before
  size_t put = 0;                               // groups that are put, put back or dropped

  bool AllAreReady() const { return ready.size() + too_short.size() + unfinished.size() + put == missing.size(); }

  // The requests for these rows, of which those of a group with the same prompt are samples of one. InvalidArgument
  // names a row whose prompt leaves no room.
  absl::StatusOr<std::vector<engine::Request>> Ask(const Rows& asked, const RolloutQuestions& questions);

  // An answer to the request with this number.
  absl::Status Take(size_t request, engine::Answer& answer, int64_t min_tokens);

  // The oldest weights that made the tokens which a row has got now, or those of a group.
  int64_t VersionOf(size_t row) const;
  int64_t VersionOfGroup(size_t group) const;

  std::vector<size_t> RowsOf(const std::vector<size_t>& some) const;

  // The columns of these rows; also reports them.
  absl::StatusOr<Batch> ColumnsOf(const std::vector<size_t>& some, const text::Tokenizer& tokenizer,
                                  const std::vector<std::string>& log_probs, StepMetrics& metrics) const;
  // What the model has computed for them. Each prompt passes through it once.
  void ReportWork(const std::vector<size_t>& some, const model::ModelConfig& config, bool partial,
                  StepMetrics& metrics) const;
};

}  // namespace tdock::trainer
