#include "trainer/environment/calculator.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"
#include "trainer/environment/arithmetic.h"
#include "trainer/reward/exact_number.h"

namespace tdock::environment {
namespace {

using Json = nlohmann::json;

constexpr char kName[] = "calculator";
constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"calculator",)"
    R"("description":"Computes the exact value of an arithmetic expression.","parameters":{"type":"object",)"
    R"("properties":{"expression":{"type":"string","description":"Numbers, + - * / and parentheses."}},)"
    R"("required":["expression"]}}}])";

// What it says to the model.
std::string Answer(absl::string_view expression) {
  absl::StatusOr<std::string> value = Evaluate(expression);
  return value.ok() ? *std::move(value) : absl::StrCat("error: ", value.status().message());
}

std::string AnswerCall(const Json& function) {
  const std::string name = function.value("name", "");
  if (name != kName) return absl::StrCat("error: there is no tool ", Quoted(name), "; there is ", Quoted(kName));
  const Json arguments = function.value("arguments", Json::object());
  const auto expression = arguments.is_object() ? arguments.find("expression") : arguments.end();
  if (!arguments.is_object() || expression == arguments.end() || !expression->is_string()) {
    return R"(error: the argument "expression" is missing; it is a text)";
  }
  return Answer(expression->get_ref<const std::string&>());
}

// The calls of a turn, each an object with "function".
Json CallsOf(const text::Turn& turn) {
  const Json fields = ReadJson(turn.fields);
  if (!fields.is_object()) return Json::array();
  return fields.value("tool_calls", Json::array());
}

// What is between the brackets that a message ends with.
std::optional<absl::string_view> BracketedEnd(absl::string_view said) {
  said = absl::StripTrailingAsciiWhitespace(said);
  if (!absl::ConsumeSuffix(&said, "]")) return std::nullopt;
  const size_t begin = said.rfind('[');
  if (begin == absl::string_view::npos) return std::nullopt;
  return said.substr(begin + 1);
}

class Calculator final : public Environment {
 public:
  explicit Calculator(TurnFormat format) : format_(format) {}

  const std::string& name() const override { return name_; }
  absl::StatusOr<Description> Start() override {
    return Description{.tools = format_ == TurnFormat::kChat ? kTools : ""};
  }
  void Reset(EpisodeId episode, uint64_t, const EpisodeRow& row) override {
    truths_[episode] = row.truth;
    events_.push_back({.episode = episode, .what = Observation()});
  }
  void Step(EpisodeId episode, const text::Turn& message) override {
    const auto found = truths_.find(episode);
    if (found == truths_.end()) return;
    Observation observation = Answers(message);
    if (observation.messages.empty()) {
      const std::optional<std::string> given = reward::FinalNumber(message.content, /*marked_only=*/false);
      const bool correct = given && given == reward::FinalNumber(found->second, /*marked_only=*/false);
      observation = {.rewards = {{"correct", correct ? 1.0 : 0.0}}, .done = true};
      truths_.erase(found);
    }
    events_.push_back({.episode = episode, .what = std::move(observation)});
  }
  void Answer(EpisodeId, int64_t, const absl::StatusOr<Generated>&) override {}  // it asks for nothing
  void End(EpisodeId episode) override {
    truths_.erase(episode);
    std::erase_if(events_, [&](const Event& event) { return event.episode == episode; });
  }
  absl::StatusOr<std::vector<Event>> Wait(absl::Time) override {
    if (!events_.empty()) return std::exchange(events_, {});
    return absl::DeadlineExceededError("the calculator has nothing to answer");
  }

 private:
  Observation Answers(const text::Turn& message) const {
    Observation observation;
    if (format_ == TurnFormat::kText) {
      if (const auto expression = BracketedEnd(message.content)) {
        observation.messages = {{.role = text::Role::kUser, .content = environment::Answer(*expression)}};
      }
      return observation;
    }
    for (const Json& call : CallsOf(message)) {
      const std::string id = call.value("id", "");
      Json fields = {{"name", kName}};
      if (!id.empty()) fields["tool_call_id"] = id;
      observation.messages.push_back({.role = text::Role::kTool,
                                      .content = AnswerCall(call.value("function", Json::object())),
                                      .fields = JsonText(fields)});
    }
    return observation;
  }

  const TurnFormat format_;
  const std::string name_ = kName;
  std::map<EpisodeId, std::string> truths_;  // of the episodes that are not over
  std::vector<Event> events_;
};

}  // namespace

std::vector<std::string> BuiltInNames() { return {kName}; }

absl::StatusOr<std::unique_ptr<Environment>> MakeBuiltInEnvironment(const std::string& name, TurnFormat format) {
  if (name == kName) return std::make_unique<Calculator>(format);
  return absl::NotFoundError(
      absl::StrCat("there is no environment ", Quoted(name), "; there is ", absl::StrJoin(BuiltInNames(), ", ")));
}

}  // namespace tdock::environment
