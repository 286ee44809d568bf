// What this program and reward programs say to each other: lines of JSON, of at most 16 MiB. docs/rewards.md describes
// version 1 for those who write reward programs.
//
//   host      {"type":"hello","protocol":1,"columns":["extra_info"]}
//   program   {"type":"hello","protocol":1,"name":"accuracy"}
//   host      {"type":"score","batch":7,"samples":[{"sample":0,"prompt":"…","completion":"…",…},…]}
//   program   {"type":"scores","batch":7,"scores":[{"sample":0,"score":1.0},{"sample":1,"error":"…"}]}   as often as it
//   likes
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "trainer/reward/external/score_source.h"

namespace tdock::reward {

inline constexpr int kProtocolVersion = 1;

// Lines, with their ends. Invalid UTF-8 is replaced.
std::string HelloLine(const std::vector<std::string>& columns);
std::string ScoreLine(int64_t batch, std::span<const Answer> answers, std::span<const size_t> indexes);

// A sample of a message; `number` is how its score must name it.
nlohmann::json SampleJson(const Answer& answer, size_t number);

// InvalidArgument, saying what is wrong with a program's first line.
absl::Status CheckHello(absl::string_view line);

struct ScoredSample {
  int64_t sample = 0;
  // Unknown if the program says that there is none, FailedPrecondition if it adds that another try is of no use.
  // InvalidArgument if it gave what is no finite number.
  absl::StatusOr<SourceScore> score;
};
// True if a sample is sent again for this error of its score: only if the program said so itself. Asking again for what
// is no score might get one, and would hide the fault.
inline bool IsRepeatable(const absl::Status& of_score) { return absl::IsUnknown(of_score); }

// The scores of a line. InvalidArgument, saying what is wrong with it: no JSON, another message, another batch.
absl::StatusOr<std::vector<ScoredSample>> ParseScoresLine(absl::string_view line, int64_t batch);
// The same of the "scores" of an object, such as the answer of a server.
absl::StatusOr<std::vector<ScoredSample>> ParseScores(const nlohmann::json& object);

}  // namespace tdock::reward
