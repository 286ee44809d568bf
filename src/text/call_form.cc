#include "text/call_form.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/value.h"
#include "text/turn_json.h"

namespace tdock::text {
namespace {

using OrderedJson = nlohmann::ordered_json;
using NoContent = CallForm::NoContent;

// ---- The form that a template takes.

constexpr absl::string_view kProbeTools =
    R"([{"type": "function", "function": {"name": "probe_tool", "description": "d",
  "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}, "required": []}}}])";
constexpr absl::string_view kProbeResult =
    R"(, {"role": "tool", "content": "4", "name": "probe_tool", "tool_call_id": "aB3dE6gH9"},
         {"role": "assistant", "content": "ok"})";
constexpr absl::string_view kProbeObject = R"({"probe_key": "probe value"})", kQuotedProbe = R"(\"probe_key)",
                            kPythonProbe = R"({'probe_key': 'probe value'})";
constexpr absl::string_view kKeyOfCall = "probed call", kKeyOfFunction = "probed function";

std::string ProbeMessages(NoContent no_content, bool as_text, bool with_result) {
  const absl::string_view content = no_content == NoContent::kNone    ? R"("content": null, )"
                                    : no_content == NoContent::kEmpty ? R"("content": "", )"
                                                                      : "";
  const std::string arguments = as_text ? JsonText(OrderedJson(std::string(kProbeObject))) : std::string(kProbeObject);
  return absl::StrCat(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", )", content,
                      R"("tool_calls": [{"id": "aB3dE6gH9", "type": "function", "probe_call": ")", kKeyOfCall,
                      R"(", "function": {"name": "probe_tool", "arguments": )", arguments, R"(, "probe_function": ")",
                      kKeyOfFunction, R"("}}]})", with_result ? kProbeResult : "", "]");
}

// Empty where the template refuses the conversation.
std::string RenderedProbe(const jinja::Template& program, const std::string& messages) {
  constexpr int kMaxPolls = 8;  // each a few thousand steps
  constexpr size_t kMaxOutputBytes = size_t{1} << 20;
  jinja::Template::Inputs inputs;
  for (const auto& [name, json] :
       {std::pair<const char*, absl::string_view>("messages", messages), {"tools", kProbeTools}}) {
    absl::StatusOr<jinja::Value> value = jinja::FromJson(ReadOrderedJson(json), jinja::Origin{0});
    if (!value.ok()) return "";
    inputs.emplace_back(name, *std::move(value));
  }
  inputs.emplace_back("documents", jinja::Value::None());
  inputs.emplace_back("add_generation_prompt", jinja::Value::Bool(false));
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    inputs.emplace_back(name, jinja::Value::String("<s>"));
  }
  int polls = 0;
  const StopCheck stop = [&polls] {
    return ++polls <= kMaxPolls ? absl::OkStatus() : absl::CancelledError("the template takes too long");
  };
  absl::StatusOr<jinja::Rendered> rendered = program.Render(inputs, {.output_bytes = kMaxOutputBytes, .stop = stop});
  return rendered.ok() ? std::move(rendered->text) : "";
}

// True if the arguments stand in the text as they are: as JSON, or as what a template makes of each of them.
bool ShowsArguments(absl::string_view text, bool as_text) {
  if (absl::StrContains(text, kQuotedProbe) || absl::StrContains(text, kPythonProbe)) return false;
  if (as_text) return absl::StrContains(text, kProbeObject);
  return absl::StrContains(text, "probe_key") && absl::StrContains(text, "probe value");
}

}  // namespace

CallForm FindCallForm(const jinja::Template& program) {
  for (const bool with_result : {true, false}) {
    // "None" is how a template writes a content that is none; others have that word in what they tell the model.
    for (const bool may_say_none : {false, true}) {
      for (const NoContent no_content : {NoContent::kNone, NoContent::kEmpty, NoContent::kMissing}) {
        for (const bool as_text : {false, true}) {
          const std::string text = RenderedProbe(program, ProbeMessages(no_content, as_text, with_result));
          if (!ShowsArguments(text, as_text) || (!may_say_none && absl::StrContains(text, "None"))) continue;
          const bool other_text =
              as_text || ShowsArguments(RenderedProbe(program, ProbeMessages(no_content, true, with_result)), true);
          return {.no_content = no_content,
                  .arguments_as_text = as_text,
                  .renders_other_text = other_text,
                  .renders_whole_calls = absl::StrContains(text, kKeyOfCall),
                  .renders_whole_functions = absl::StrContains(text, kKeyOfFunction)};
        }
      }
    }
  }
  return {};
}

// ---- Calls in that form.

namespace {

// Appends JSON with a space behind each comma and colon, as Python writes it. False for more than kMaxNesting levels.
bool AppendSpaced(const OrderedJson& json, int level, std::string& text) {
  if (level > jinja::kMaxNesting) return false;
  if (json.is_primitive()) {
    text += JsonText(json);
    return true;
  }
  absl::string_view before = json.is_object() ? "{" : "[";
  if (json.empty()) absl::StrAppend(&text, before);
  for (const auto& [name, value] : json.items()) {
    absl::StrAppend(&text, before);
    before = ", ";
    if (json.is_object()) absl::StrAppend(&text, JsonText(OrderedJson(name)), ": ");
    if (!AppendSpaced(value, level + 1, text)) return false;
  }
  text += json.is_object() ? "}" : "]";
  return true;
}

// The object that has the name and the arguments of a call.
template <class Json>
Json& FunctionOf(Json& call) {
  const auto function = call.find("function");
  return function != call.end() && function->is_object() ? *function : call;
}

absl::Status LeftOut(absl::string_view name, absl::string_view title) {
  return absl::InvalidArgumentError(
      absl::StrCat("has \"", EscapeForMessage(name), "\", which ", title, " does not mention, and would leave out"));
}

absl::Status ShapeCall(const CallForm& form, absl::string_view title,
                       absl::FunctionRef<bool(absl::string_view)> mentions, OrderedJson& call) {
  OrderedJson& function = FunctionOf(call);
  for (const auto& [name, value] : call.items()) {
    const bool known = name == "id" || name == "type" || name == "index" || name == "function" || name == "name" ||
                       name == "arguments";
    if (!known && !form.renders_whole_calls && !mentions(name)) return LeftOut(name, title);
  }
  for (const auto& [name, value] : function.items()) {
    if (&function == &call || name == "name" || name == "arguments") continue;
    if (!form.renders_whole_functions && !mentions(name)) return LeftOut(name, title);
  }
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return absl::OkStatus();
  if (arguments->is_string()) {
    const std::string& given = arguments->get_ref<const std::string&>();
    OrderedJson object = ObjectOfArguments(given);
    if (object.is_discarded() && !form.renders_other_text) {
      return absl::InvalidArgumentError(absl::StrCat("has \"arguments\" that are no JSON object: ", Quoted(given), "; ",
                                                     title, " only renders an object as it is"));
    }
    if (!object.is_discarded()) *arguments = std::move(object);
  }
  std::string text;
  if (arguments->is_object() && form.arguments_as_text && AppendSpaced(*arguments, 1, text)) {
    *arguments = std::move(text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ShapeCalls(const CallForm& form, absl::string_view title,
                        absl::FunctionRef<bool(absl::string_view)> mentions, OrderedJson& calls) {
  if (!calls.is_array()) return absl::OkStatus();
  size_t number = 0;
  for (OrderedJson& call : calls) {
    ++number;
    if (!call.is_object()) continue;
    const absl::Status shaped = ShapeCall(form, title, mentions, call);
    if (!shaped.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("call ", number, " of \"tool_calls\" ", shaped.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<std::vector<std::string>> NamesOfCalls(const OrderedJson& calls) {
  // Finding a longer one could take as long as it is, for each byte of the text.
  constexpr size_t kMaxBytes = 64;
  std::vector<std::vector<std::string>> names;
  if (!calls.is_array()) return names;
  for (const OrderedJson& call : calls) {
    if (!call.is_object()) continue;
    std::vector<std::string>& of_call = names.emplace_back();
    for (const auto& [object, key] : {std::pair(&FunctionOf(call), "name"), {&call, "id"}}) {
      const auto found = object->find(key);
      if (found == object->end() || !found->is_string() || IsNothing(*found)) continue;
      of_call.push_back(found->get_ref<const std::string&>().substr(0, kMaxBytes));
    }
  }
  return names;
}

bool ShowsCalls(const std::vector<std::vector<std::string>>& calls, absl::string_view text) {
  for (const std::vector<std::string>& names : calls) {
    size_t behind = names.empty() ? 0 : absl::string_view::npos;
    for (const std::string& name : names) {
      const size_t at = text.find(name);
      if (at == absl::string_view::npos) continue;
      behind = at + name.size();
      break;
    }
    if (behind == absl::string_view::npos) return false;
    text.remove_prefix(behind);
  }
  return true;
}

}  // namespace tdock::text
