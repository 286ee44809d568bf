// tdock_jinja: each line of its input is a template with its inputs as JSON,
//
//   {"template": "Hi {{ name }}", "inputs": {"name": "Bo"}}
//
// or inputs alone, for the template of the line before; and each line of its output what it is rendered as:
// {"text": …, "generations": [[begin, end], …]}, in bytes, or {"error": …}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "core/base/status.h"
#include "text/jinja/template.h"

namespace tdock::jinja {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> Answer(const absl::StatusOr<Template>& parsed, const Json& asked) {
  if (!parsed.ok()) return parsed.status();
  Template::Inputs inputs;
  for (const auto& [name, json] : asked.at("inputs").items()) {
    TDOCK_ASSIGN_OR_RETURN(Value value, FromJson(json, /*origin=*/0));
    inputs.emplace_back(name, std::move(value));
  }
  RenderOptions options;
  if (asked.contains("now")) options.now = absl::FromUnixSeconds(asked["now"].get<int64_t>());
  TDOCK_ASSIGN_OR_RETURN(const Rendered rendered, parsed->Render(inputs, options));
  Json answer = {{"text", rendered.text}, {"generations", Json::array()}};
  for (const Range range : rendered.generations) answer["generations"].push_back({range.begin, range.end});
  return answer;
}

int Main() {
  absl::StatusOr<Template> parsed = absl::InvalidArgumentError("the first line has no template");
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    if (asked.contains("template")) parsed = Template::Parse(asked["template"].get<std::string>());
    const absl::StatusOr<Json> answer = Answer(parsed, asked);
    std::cout << (answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}}).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace tdock::jinja

int main() { return tdock::jinja::Main(); }
