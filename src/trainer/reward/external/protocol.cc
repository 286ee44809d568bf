#include "trainer/reward/external/protocol.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::reward {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 16;
constexpr size_t kMostParts = 100, kMostPartName = 100, kMostMessage = 2000;

std::string Line(const Json& json) { return JsonText(json) + "\n"; }

std::string Shown(const Json& value) { return EscapeForMessage(JsonText(value)); }

absl::StatusOr<Json> ParseMessage(absl::string_view line, absl::string_view type) {
  absl::StatusOr<Json> json = ParseJsonObject(line, kMostDepth);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it wrote ", Quoted(line), ", which is no line of the protocol: ", json.status().message()));
  }
  const auto found = json->find("type");
  if (found != json->end() && *found == std::string(type)) return json;
  return absl::InvalidArgumentError(
      absl::StrCat("it wrote ", Quoted(line), " where a message of type \"", type, "\" was due"));
}

absl::StatusOr<float> FiniteNumber(const Json& value, absl::string_view what) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0F : 0.0F;
  if (!value.is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("its ", what, " is ", Shown(value), ", which is no number"));
  }
  const auto number = static_cast<float>(value.get<double>());
  if (std::isfinite(number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("its ", what, " is ", Shown(value), "; it must be finite"));
}

absl::StatusOr<SourceScore> ParseScore(const Json& given) {
  SourceScore parsed;
  if (const auto error = given.find("error"); error != given.end() && !error->is_null()) {
    const std::string why = error->is_string() ? error->get<std::string>() : error->dump();
    const auto retry = given.find("retry");
    const bool is_final = retry != given.end() && *retry == false;
    return absl::Status(is_final ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnknown,
                        absl::StrCat("it says: ", EscapeForMessage(why, kMostMessage)));
  }
  const auto score = given.find("score");
  if (score == given.end()) return absl::InvalidArgumentError("it gave neither a score nor an error");
  if (!score->is_null()) {
    TDOCK_ASSIGN_OR_RETURN(parsed.score, FiniteNumber(*score, "score"));
  }
  if (const auto parts = given.find("parts"); parts != given.end() && !parts->is_null()) {
    if (!parts->is_object() || parts->size() > kMostParts) {
      return absl::InvalidArgumentError(
          absl::StrCat("its parts are no object of at most ", kMostParts, " numbers: ", Shown(*parts)));
    }
    for (const auto& [name, value] : parts->items()) {
      TDOCK_ASSIGN_OR_RETURN(const float number, FiniteNumber(value, absl::StrCat("part ", Quoted(name))));
      parsed.parts.emplace_back(EscapeForMessage(name, kMostPartName), number);
    }
  }
  if (const auto message = given.find("message"); message != given.end() && message->is_string()) {
    parsed.message = EscapeForMessage(message->get<std::string>(), kMostMessage);
  }
  return parsed;
}

}  // namespace

std::string HelloLine(const std::vector<std::string>& columns) {
  return Line({{"type", "hello"}, {"protocol", kProtocolVersion}, {"columns", columns}});
}

nlohmann::json SampleJson(const Answer& answer, size_t number) {
  Json sample = {{"sample", number},
                 {"prompt", answer.prompt},
                 {"completion", answer.response},
                 {"finished", answer.finished},
                 {"truth", answer.truth},
                 {"source", answer.source}};
  if (!answer.messages.empty()) {
    Json messages = ReadJson(answer.messages);
    if (messages.is_array()) sample["messages"] = std::move(messages);
  }
  Json columns = Json::object();
  for (const auto& [name, text] : answer.columns) columns[name] = text;
  sample["columns"] = std::move(columns);
  return sample;
}

std::string ScoreLine(int64_t batch, std::span<const Answer> answers, std::span<const size_t> indexes) {
  Json samples = Json::array();
  for (const size_t index : indexes) samples.push_back(SampleJson(answers[index], index));
  return Line({{"type", "score"}, {"batch", batch}, {"samples", std::move(samples)}});
}

absl::Status CheckHello(absl::string_view line) {
  TDOCK_ASSIGN_OR_RETURN(const Json hello, ParseMessage(line, "hello"));
  const auto version = hello.find("protocol");
  if (version != hello.end() && *version == kProtocolVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it speaks version ",
                                                 version == hello.end() ? "unknown" : Shown(*version),
                                                 " of the protocol; this is version ", kProtocolVersion));
}

absl::StatusOr<std::vector<ScoredSample>> ParseScores(const nlohmann::json& object) {
  const auto scores = object.find("scores");
  if (scores == object.end() || !scores->is_array()) {
    return absl::InvalidArgumentError("it gave no list of \"scores\"");
  }
  std::vector<ScoredSample> parsed;
  for (const Json& given : *scores) {
    const auto sample = given.is_object() ? given.find("sample") : given.end();
    if (!given.is_object() || sample == given.end() || !sample->is_number_integer() ||
        (sample->is_number_unsigned() && sample->get<uint64_t>() > INT64_MAX)) {
      return absl::InvalidArgumentError(absl::StrCat("it gave the score ", Shown(given), ", which names no sample"));
    }
    parsed.push_back({.sample = sample->get<int64_t>(), .score = ParseScore(given)});
  }
  return parsed;
}

absl::StatusOr<std::vector<ScoredSample>> ParseScoresLine(absl::string_view line, int64_t batch) {
  TDOCK_ASSIGN_OR_RETURN(const Json message, ParseMessage(line, "scores"));
  const auto of_batch = message.find("batch");
  if (of_batch == message.end() || *of_batch != batch) {
    return absl::InvalidArgumentError(absl::StrCat("it gave scores of batch ",
                                                   of_batch == message.end() ? "none" : Shown(*of_batch),
                                                   " where batch ", batch, " was due"));
  }
  return ParseScores(message);
}

}  // namespace tdock::reward
