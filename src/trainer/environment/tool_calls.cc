#include "trainer/environment/tool_calls.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::environment {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
constexpr int kDeepestCall = 16;
constexpr size_t kMostCalls = 64;

absl::Status NotUnderstood(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("The call of a tool cannot be understood: ", what, ". Write ", kBegin,
                                                 R"({"name": "…", "arguments": {…}})", kEnd));
}

// One call from what is between its tags.
absl::StatusOr<Json> ParseCall(absl::string_view text, size_t number) {
  const absl::StatusOr<Json> call = ParseJsonObject(absl::StripAsciiWhitespace(text), kDeepestCall);
  if (!call.ok()) return NotUnderstood(absl::StrCat(Quoted(text), " is ", call.status().message()));
  const auto name = call->find("name");
  if (name == call->end() || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    return NotUnderstood(absl::StrCat(Quoted(text), R"( has no "name")"));
  }
  Json arguments = Json::object();
  if (const auto given = call->find("arguments"); given != call->end() && !given->is_null()) {
    if (!given->is_object())
      return NotUnderstood(absl::StrCat(R"(the "arguments" of )", Quoted(text), " are no object"));
    arguments = *given;
  }
  return Json{{"id", absl::StrCat("call_", number)},
              {"type", "function"},
              {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}};
}

}  // namespace

absl::StatusOr<text::Turn> ParseToolCalls(ToolFormat format, absl::string_view said) {
  text::Turn turn{.role = text::Role::kAssistant, .content = std::string(said)};
  if (format == ToolFormat::kNone) return turn;
  Json calls = Json::array();
  std::string around;
  absl::string_view rest = said;
  for (size_t begin = rest.find(kBegin); begin != absl::string_view::npos; begin = rest.find(kBegin)) {
    absl::StrAppend(&around, rest.substr(0, begin));
    rest.remove_prefix(begin + kBegin.size());
    const size_t end = rest.find(kEnd);
    if (end == absl::string_view::npos) return NotUnderstood(absl::StrCat("it has no ", kEnd));
    if (calls.size() == kMostCalls) return NotUnderstood(absl::StrCat("there are more than ", kMostCalls));
    TDOCK_ASSIGN_OR_RETURN(Json call, ParseCall(rest.substr(0, end), calls.size()));
    calls.push_back(std::move(call));
    rest.remove_prefix(end + kEnd.size());
  }
  absl::StrAppend(&around, rest);
  if (absl::StrContains(around, kEnd)) return NotUnderstood(absl::StrCat("there is ", kEnd, " without ", kBegin));
  if (calls.empty()) return turn;
  turn.content = std::string(absl::StripAsciiWhitespace(around));
  turn.has_content = !turn.content.empty();
  turn.fields = JsonText(Json{{"tool_calls", std::move(calls)}});
  return turn;
}

}  // namespace tdock::environment
