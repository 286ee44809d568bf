#include "trainer/environment/protocol.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/turn_json.h"

namespace tdock::environment {
namespace {

using Json = nlohmann::json;

constexpr int kDeepestMessage = 32;
constexpr size_t kMostError = 2000, kMostTools = 1000;

absl::Status Wrong(const Json& value, absl::string_view what, absl::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat("its ", what, " is ", EscapeForMessage(JsonText(value)), "; it must be ", right));
}

// The member of an object; null where there is none.
const Json& Member(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

Json TurnJson(const text::Turn& turn) {
  Json json = {{"role", std::string(text::RoleName(turn.role))}};
  if (turn.has_content) {
    json["content"] = turn.content;
  } else {
    json["content"] = nullptr;
  }
  if (!turn.fields.empty()) {
    const Json fields = ReadJson(turn.fields);
    if (fields.is_object()) json.update(fields);
  }
  return json;
}

Json RowJson(const EpisodeRow& row) {
  Json messages = Json::array(), columns = Json::object();
  for (const text::Turn& turn : row.messages) messages.push_back(TurnJson(turn));
  for (const auto& [name, text] : row.columns) columns[name] = text;
  return {{"prompt", row.prompt},         {"messages", std::move(messages)},
          {"prompt_ids", row.prompt_ids}, {"truth", row.truth},
          {"source", row.source},         {"columns", std::move(columns)}};
}

absl::StatusOr<Json> ParseMessage(absl::string_view line) {
  absl::StatusOr<Json> json = ParseJsonObject(line, kDeepestMessage);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it wrote ", Quoted(line), ", which is no line of the protocol: ", json.status().message()));
  }
  if (Member(*json, "type").is_string()) return json;
  return absl::InvalidArgumentError(absl::StrCat("it wrote ", Quoted(line), ", which has no \"type\""));
}

absl::StatusOr<uint64_t> Whole(const Json& value, absl::string_view what, uint64_t most) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= most) return value.get<uint64_t>();
  return Wrong(value, what, absl::StrCat("a whole number from 0 to ", most));
}

absl::StatusOr<bool> Flag(const Json& value, absl::string_view what) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  return Wrong(value, what, "true or false");
}

absl::StatusOr<Rewards> ParseRewards(const Json& value) {
  Rewards rewards;
  if (value.is_null()) return rewards;
  if (!value.is_object() || value.size() > kMostRewards) {
    return Wrong(value, "rewards", absl::StrCat("an object of at most ", kMostRewards, " numbers by name"));
  }
  for (const auto& [name, number] : value.items()) {
    if (name.empty() || name.size() > kMostRewardName) {
      return absl::InvalidArgumentError(
          absl::StrCat("it names a reward ", Quoted(name), "; a name has 1 to ", kMostRewardName, " bytes"));
    }
    const std::string what = absl::StrCat("reward ", Quoted(name));
    if (!number.is_number() && !number.is_boolean()) return Wrong(number, what, "a number");
    const double parsed = number.is_boolean() ? static_cast<double>(number.get<bool>()) : number.get<double>();
    if (!std::isfinite(static_cast<float>(parsed))) return Wrong(number, what, "finite");
    rewards.emplace_back(EscapeForMessage(name, kMostRewardName), parsed);
  }
  return rewards;
}

absl::StatusOr<text::Turn> ParseTurn(const Json& value) {
  const std::string json = JsonText(value);
  auto message = text::ParseBoundedJson(json, nlohmann::ordered_json::value_t::object, "an object");
  absl::StatusOr<text::Turn> turn = message.ok() ? text::ReadTurn(*message) : message.status();
  if (!turn.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its message ", EscapeForMessage(json), " is no turn: ", turn.status().message()));
  }
  if (turn->role != text::Role::kAssistant) return turn;
  return Wrong(Member(value, "role"), "message's \"role\"",
               R"("user", "tool", "system", "developer" or "function": only the model speaks as the assistant)");
}

absl::StatusOr<Observation> ParseObservation(const Json& json) {
  Observation observation;
  if (const Json& messages = Member(json, "messages"); !messages.is_null()) {
    if (!messages.is_array() || messages.size() > kMostMessages) {
      return Wrong(messages, "\"messages\"", absl::StrCat("a list of at most ", kMostMessages, " messages"));
    }
    for (const Json& message : messages) {
      TDOCK_ASSIGN_OR_RETURN(text::Turn turn, ParseTurn(message));
      observation.messages.push_back(std::move(turn));
    }
  }
  TDOCK_ASSIGN_OR_RETURN(observation.rewards, ParseRewards(Member(json, "rewards")));
  TDOCK_ASSIGN_OR_RETURN(observation.done, Flag(Member(json, "done"), "\"done\""));
  TDOCK_ASSIGN_OR_RETURN(observation.truncated, Flag(Member(json, "truncated"), "\"truncated\""));
  TDOCK_ASSIGN_OR_RETURN(observation.continues, Flag(Member(json, "continues"), "\"continues\""));
  return observation;
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(const Json& value, absl::string_view what) {
  if (!value.is_array() || value.size() > kMostTokens) {
    return Wrong(value, what, absl::StrCat("a list of at most ", kMostTokens, " tokens"));
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& token : value) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t id,
                           Whole(token, absl::StrCat("token in ", what), std::numeric_limits<int32_t>::max()));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<GenerateRequest> ParseGenerate(const Json& json) {
  GenerateRequest request;
  TDOCK_ASSIGN_OR_RETURN(const uint64_t number,
                         Whole(Member(json, "request"), "\"request\"", std::numeric_limits<int64_t>::max()));
  request.request = static_cast<int64_t>(number);
  TDOCK_ASSIGN_OR_RETURN(request.prompt_ids, ParseTokens(Member(json, "prompt_ids"), "\"prompt_ids\""));
  if (request.prompt_ids.empty()) return Wrong(Json::array(), "\"prompt_ids\"", "a list of at least one token");
  if (const Json& most = Member(json, "max_tokens"); !most.is_null()) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t tokens, Whole(most, "\"max_tokens\"", kMostTokens));
    request.max_tokens = static_cast<int64_t>(tokens);
  }
  return request;
}

absl::StatusOr<AgentOutput> ParseOutput(const Json& json) {
  AgentOutput output;
  TDOCK_ASSIGN_OR_RETURN(output.prompt_ids, ParseTokens(Member(json, "prompt_ids"), "\"prompt_ids\""));
  TDOCK_ASSIGN_OR_RETURN(output.response_ids, ParseTokens(Member(json, "response_ids"), "\"response_ids\""));
  const Json& mask = Member(json, "response_mask");
  if (!mask.is_array() || mask.size() != output.response_ids.size()) {
    return Wrong(mask, "\"response_mask\"",
                 absl::StrCat("a list of as many numbers as \"response_ids\" has, ", output.response_ids.size()));
  }
  for (const Json& value : mask) {
    if (value != 0 && value != 1 && !value.is_boolean()) return Wrong(value, "number in \"response_mask\"", "0 or 1");
    output.response_mask.push_back(value == 1 || value == true ? 1 : 0);
  }
  TDOCK_ASSIGN_OR_RETURN(output.rewards, ParseRewards(Member(json, "rewards")));
  return output;
}

}  // namespace

std::string HelloLine(const EnvironmentSetup& setup) {
  return JsonText(
      Json{{"type", "hello"}, {"protocol", kProtocolVersion}, {"columns", setup.columns}, {"model", setup.model}});
}

std::string ResetLine(EpisodeId episode, uint64_t seed, const EpisodeRow& row) {
  return JsonText(Json{{"type", "reset"}, {"episode", episode}, {"seed", seed}, {"row", RowJson(row)}});
}

std::string RunLine(EpisodeId episode, uint64_t seed, const EpisodeRow& row, const EnvironmentSetup& setup,
                    const Endpoint* endpoint) {
  const Json sampling = {{"temperature", setup.temperature}, {"top_p", setup.top_p}, {"max_tokens", setup.max_tokens}};
  Json line{{"type", "run"}, {"episode", episode}, {"seed", seed}, {"sampling", sampling}, {"row", RowJson(row)}};
  if (endpoint != nullptr) {
    line["base_url"] = endpoint->base_url;
    line["api_key"] = endpoint->api_key;
    line["model"] = endpoint->model;
  }
  return JsonText(line);
}

std::string StepLine(EpisodeId episode, const text::Turn& message) {
  return JsonText(Json{{"type", "step"}, {"episode", episode}, {"message", TurnJson(message)}});
}

std::string GeneratedLine(EpisodeId episode, int64_t request, const absl::StatusOr<Generated>& generated) {
  Json json = {{"type", "generated"}, {"episode", episode}, {"request", request}};
  if (generated.ok()) {
    json["token_ids"] = generated->token_ids;
    json["log_probs"] = generated->log_probs;
    json["stop_reason"] = generated->stop_reason;
    json["weights_version"] = generated->weights_version;
  } else {
    json["error"] = std::string(generated.status().message());
  }
  return JsonText(json);
}

std::string ConcludeLine(EpisodeId episode) { return JsonText(Json{{"type", "conclude"}, {"episode", episode}}); }

std::string EndLine(EpisodeId episode) { return JsonText(Json{{"type", "end"}, {"episode", episode}}); }

absl::StatusOr<Hello> ParseHello(absl::string_view line) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseMessage(line));
  if (Member(json, "type") != "hello") {
    return absl::InvalidArgumentError(absl::StrCat("it wrote ", Quoted(line), R"( where "hello" was due)"));
  }
  if (const Json& error = Member(json, "error"); error.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it says: ", EscapeForMessage(error.get<std::string>(), kMostError)));
  }
  if (Member(json, "protocol") != kProtocolVersion) {
    return Wrong(Member(json, "protocol"), "version of the protocol", absl::StrCat(kProtocolVersion));
  }
  Hello hello;
  if (const Json& kind = Member(json, "kind"); !kind.is_null()) {
    if (kind != "environment" && kind != "agent" && kind != "client") {
      return Wrong(kind, "\"kind\"", R"("environment", "agent" or "client")");
    }
    hello.what.is_agent = kind == "agent";
    hello.what.is_client = kind == "client";
  }
  if (const Json& tools = Member(json, "tools"); !tools.is_null() && tools != Json::array()) {
    if (!tools.is_array() || tools.size() > kMostTools) {
      return Wrong(tools, "\"tools\"", absl::StrCat("a list of at most ", kMostTools, " JSON schemas"));
    }
    for (const Json& tool : tools) {
      const Json& function = tool.is_object() ? Member(tool, "function") : tool;
      if (!function.is_object() || !Member(function, "name").is_string()) {
        return Wrong(tool, "tool", R"(a schema {"type":"function","function":{"name":…,"parameters":…}})");
      }
    }
    hello.what.tools = JsonText(tools);
  }
  TDOCK_ASSIGN_OR_RETURN(hello.what.concludes, Flag(Member(json, "concludes"), "\"concludes\""));
  if (const Json& episodes = Member(json, "episodes"); !episodes.is_null()) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t most, Whole(episodes, "\"episodes\"", kMostEpisodes));
    if (most == 0) return Wrong(episodes, "\"episodes\"", "at least 1");
    hello.episodes = static_cast<int64_t>(most);
  }
  return hello;
}

absl::StatusOr<Event> ParseEvent(absl::string_view line, bool is_agent) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseMessage(line));
  const std::string type = Member(json, "type").get<std::string>();
  const bool known = is_agent ? type == "generate" || type == "output" || type == "observation" : type == "observation";
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("it wrote ", Quoted(line), ", which is none of the messages of an ",
                     is_agent ? R"(agent ("generate", "output"))" : R"(environment ("observation"))"));
  }
  TDOCK_ASSIGN_OR_RETURN(const EpisodeId episode,
                         Whole(Member(json, "episode"), "\"episode\"", std::numeric_limits<uint64_t>::max()));
  if (const Json& error = Member(json, "error"); !error.is_null()) {
    const std::string why = error.is_string() ? error.get<std::string>() : JsonText(error);
    return Event{.episode = episode,
                 .what = absl::UnknownError(absl::StrCat("it says: ", EscapeForMessage(why, kMostError)))};
  }
  Event event{.episode = episode, .what = Observation()};
  if (type == "generate") {
    TDOCK_ASSIGN_OR_RETURN(event.what, ParseGenerate(json));
  } else if (type == "output") {
    TDOCK_ASSIGN_OR_RETURN(event.what, ParseOutput(json));
  } else if (!is_agent) {
    TDOCK_ASSIGN_OR_RETURN(event.what, ParseObservation(json));
  } else {
    return absl::InvalidArgumentError(R"(it wrote an "observation" without an error, which an agent never does)");
  }
  return event;
}

absl::Status CheckEndsEpisode(const Event& event) {
  if (IsLast(event)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its observation of episode ", event.episode,
                                                 " is not \"done\"; that of an agent of a URL ends the episode"));
}

}  // namespace tdock::environment
